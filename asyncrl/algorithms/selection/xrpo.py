"""XRPO's stages: more rollouts where they narrow the confidence interval of the mean reward.

With n rewards of the sample deviation s, half of the interval is h(n) = t s / sqrt(n), where t is
the quantile 0.975 of Student's distribution with n - 1 degrees of freedom. Another stage, of as
many rollouts as the first, is due while h falls by more than FALL. The authors give a step's budget
to the prompts of the largest fall, with a bonus for exploration that is the same for all groups of
one size; a group that is asked alone has a threshold instead.
"""

from __future__ import annotations

import math
import statistics
from functools import cache
from typing import ClassVar

from asyncrl.algorithms.selection.growth import GrowingGroup, GrowingSizing
from asyncrl.algorithms.selection.prompt_history import History

FALL = 0.1
"""The fall of half of the interval, in units of the reward, for which a stage is worth it."""
CHANCE = 0.95
"""The chance that the interval has the mean."""


class Xrpo(GrowingSizing):
    """A stage at a time; no more where all rewards are equal.

    >>> from asyncrl.algorithms.selection.judged_group import JudgedMember
    >>> mixed = [JudgedMember(1.0), JudgedMember(0.0)] * 4
    >>> Xrpo(8, 32).grow(GrowingGroup(8, mixed)), Xrpo(8, 32).grow(GrowingGroup(16, mixed * 2))
    (16, 16)
    """

    kind: ClassVar[str] = "xrpo"

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def size(self, history: History, prompt_index: int) -> int:
        return self._least

    def grow(self, group: GrowingGroup) -> int:
        stage, n = min(self._least, self._most - group.size), len(group.members)
        if n < 2:
            return group.size + stage
        deviation = statistics.stdev(group.rewards)
        fall = deviation * (_half(n) - _half(n + stage))
        return group.size + stage * (fall > FALL)


def _half(n: int) -> float:
    """Half of the interval of n rewards, for a deviation of 1."""
    return student(n - 1) / math.sqrt(n)


@cache
def student(freedom: int) -> float:
    """The t that a variable of Student's distribution with this many degrees of freedom, at least
    1, exceeds in size with a chance of 1 - CHANCE.

    >>> [round(student(freedom), 3) for freedom in (1, 2, 7, 30)]
    [12.706, 4.303, 2.365, 2.042]
    """
    low, high = 0.0, 64.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CHANCE else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """The chance of a size of at most t: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
