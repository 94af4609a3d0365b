"""Advantages relative to the other members of a group."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import ClassVar

from asyncrl.algorithms.advantages.advantage import GroupAdvantage
from asyncrl.algorithms.advantages.normalization import centred, normalized, scaled


class Grpo(GroupAdvantage):
    """`(R - mean) / std` of the group (arXiv 2402.03300, section 4.1).

    >>> Grpo().of_group([0.0, 2.0, 4.0])
    [-1.0, 0.0, 1.0]
    """

    kind: ClassVar[str] = "grpo"

    def of_group(self, rewards: Sequence[float]) -> list[float]:
        return normalized(rewards)


class DrGrpo(GroupAdvantage):
    """`R - mean` of the group (arXiv 2503.20783).

    >>> DrGrpo().of_group([0.0, 2.0, 4.0])
    [-2.0, 0.0, 2.0]
    """

    kind: ClassVar[str] = "dr_grpo"
    by_turn: ClassVar[bool] = True

    def of_group(self, rewards: Sequence[float]) -> list[float]:
        return centred(rewards)


class Rloo(GroupAdvantage):
    """`R - mean of the others`, which is `n / (n - 1)` of `R - mean` (arXiv 2402.14740). A member
    without others has no signal.

    >>> Rloo().of_group([0.0, 2.0, 4.0])
    [-3.0, 0.0, 3.0]
    """

    kind: ClassVar[str] = "rloo"
    by_turn: ClassVar[bool] = True

    def of_group(self, rewards: Sequence[float]) -> list[float]:
        others = max(1, len(rewards) - 1)
        return [deviation * len(rewards) / others for deviation in centred(rewards)]


class McGrpo(GroupAdvantage):
    """`(R - median) / std` (arXiv 2601.22582). Where the number of verdicts is odd, one member of
    the median reward (the first) is not trained: the others are compared with it.

    The authors divide by the median absolute deviation, which is 0 in every odd group of rewards 0
    and 1. They sample one rollout more than they train, so a group is odd; if one lost a verdict,
    its median is between two members, and all members are trained.

    >>> McGrpo().of_group([0.0, 4.0, 2.0])
    [-1.0, 1.0, None]
    """

    kind: ClassVar[str] = "mc_grpo"
    needs_member: ClassVar[bool] = True
    odd_group: ClassVar[bool] = True

    def of_group(self, rewards: Sequence[float]) -> list[float | None]:
        median = statistics.median(rewards)
        values: list[float | None] = [*scaled(rewards, median)]
        if len(rewards) % 2:
            values[rewards.index(median)] = None
        return values
