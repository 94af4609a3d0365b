"""Advantages: how much better a rollout did than is expected of its prompt. Invariant: only members
with a verdict count; a group is known by its id.

No torch here: the configuration and the coordinator import this.
"""

from asyncrl.algorithms.advantages.advantage import (
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
from asyncrl.algorithms.advantages.first_k import FirstK
from asyncrl.algorithms.advantages.grpo import DrGrpo, Grpo, McGrpo, Rloo
from asyncrl.algorithms.advantages.min_variance import MinVariance, MinVarianceLogits
from asyncrl.algorithms.advantages.reinforce_pp import Gdpo, ReinforcePp, ReinforcePpBaseline
from asyncrl.algorithms.advantages.unrewarded import Unrewarded

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
