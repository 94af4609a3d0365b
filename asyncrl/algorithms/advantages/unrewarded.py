"""No advantage from rewards: for learning only from a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from asyncrl.algorithms.advantages.advantage import GroupAdvantage


class Unrewarded(GroupAdvantage):
    """0, whatever the rewards. A token's advantage then comes only from policies that do not learn
    (on-policy distillation).

    >>> Unrewarded().of_group([0.0, 2.0, 4.0])
    [0.0, 0.0, 0.0]
    """

    kind: ClassVar[str] = "none"
    equal_has_signal: ClassVar[bool] = True

    def of_group(self, rewards: Sequence[float]) -> list[float]:
        return [0.0] * len(rewards)
