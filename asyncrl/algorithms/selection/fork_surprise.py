"""Forks where a response has become uncertain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from asyncrl.algorithms.selection.fork import ForkPoint, ForkRule


class AfterSurprise(ForkRule):
    """A rollout forks where its last `every` tokens were more surprising, as `-log p`, than the
    mean of all before them. ECHO and LATR fork before a token that they have seen, which is biased.

    >>> from array import array
    >>> AfterSurprise(1).forks(ForkPoint(array("i", [5, 7]), array("f", [-1.0, -3.0])))
    True
    >>> AfterSurprise(1).forks(ForkPoint(array("i", [5, 7]), array("f", [-1.0, -0.5])))
    False
    """

    kind: ClassVar[str] = "surprise"

    def __init__(self, every: int) -> None:
        self._every = every

    def forks(self, point: ForkPoint) -> bool:
        last, before = point.logprobs[-self._every :], point.logprobs[: -self._every]
        return bool(before) and _mean(last) < _mean(before)


def _mean(numbers: Sequence[float]) -> float:

    return math.fsum(numbers) / len(numbers)
