"""No advantage of rewards: for what is learned of a teacher alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from asyncrl.algorithms.advantages.advantage import GroupAdvantage


class Unrewarded(GroupAdvantage):
    """0, whatever the rewards. What policies that do not learn add to a token's advantage is then
    all there is (on-policy distillation).

    >>> Unrewarded().of_group([0.0, 2.0, 4.0])
    [0.0, 0.0, 0.0]
    """

    kind: ClassVar[str] = "none"
    equal_has_signal: ClassVar[bool] = True

    def of_group(self, rewards: Sequence[float]) -> list[float]:
        return [0.0] * len(rewards)
