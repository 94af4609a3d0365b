"""Advantages: how much better a rollout did than is expected of its prompt. Invariant: only members
with a verdict count; a group is known by its id.

No torch here: the configuration and the coordinator import this.
"""

from staleness.advantages.advantage import (
    LARGEST,
    Advantage,
    GradientNorms,
    GroupAdvantage,
    Lengths,
    MemberAdvantage,
    Parts,
    RewardedSamples,
    Rewards,
    TurnRewards,
)
from staleness.advantages.first_k import FirstK
from staleness.advantages.in_group import DrGrpo, Grpo, McGrpo, Rloo
from staleness.advantages.in_step import Gdpo, ReinforcePp, ReinforcePpBaseline
from staleness.advantages.min_variance import MinVariance, MinVarianceLogits
from staleness.advantages.unrewarded import Unrewarded

__all__ = [
    "BUILT_IN",
    "LARGEST",
    "Advantage",
    "DrGrpo",
    "FirstK",
    "Gdpo",
    "GradientNorms",
    "GroupAdvantage",
    "Grpo",
    "Lengths",
    "McGrpo",
    "MemberAdvantage",
    "MinVariance",
    "MinVarianceLogits",
    "Parts",
    "ReinforcePp",
    "ReinforcePpBaseline",
    "RewardedSamples",
    "Rewards",
    "Rloo",
    "TurnRewards",
    "Unrewarded",
]

BUILT_IN: dict[str, type[Advantage]] = {
    cls.kind: cls
    for cls in (
        Grpo,
        DrGrpo,
        Rloo,
        McGrpo,
        Gdpo,
        ReinforcePp,
        ReinforcePpBaseline,
        FirstK,
        MinVariance,
        MinVarianceLogits,
        Unrewarded,
    )
}
"""The advantages that come with asyncrl, by their names in run.toml."""
