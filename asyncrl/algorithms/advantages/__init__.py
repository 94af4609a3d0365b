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
