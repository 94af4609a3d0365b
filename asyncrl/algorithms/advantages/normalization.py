"""Means and deviations of the rewards of one set of members.

A standard deviation is always that of a sample (divided by n - 1, as in TRL and verl), and at least
STD_FLOOR. Rewards that are all equal, compared exactly, have no signal: zeros.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

STD_FLOOR = 1e-4
"""Smallest standard deviation divided by, in units of reward."""


def mean_of(rewards: Sequence[float]) -> float:
    """Mean of at least one reward."""
    return math.fsum(rewards) / len(rewards)


def all_equal(rewards: Sequence[float]) -> bool:
    """True if no two rewards differ."""
    return all(reward == rewards[0] for reward in rewards)


def normalized(rewards: Sequence[float], counts: Sequence[int] = ()) -> list[float]:
    """`(R - mean) / std`; with `counts`, as if each reward occurred that many times (0 or more).

    >>> normalized([0.0, 2.0, 4.0])
    [-1.0, 0.0, 1.0]
    >>> [round(value, 3) for value in normalized([0.0, 4.0], [3, 1])]
    [-0.5, 1.5]
    """
    if not (total := sum(counts)) or all_equal(rewards):
        return scaled(rewards, mean_of(rewards))
    pairs = list(zip(rewards, counts, strict=True))
    mean = math.fsum(count * reward for reward, count in pairs) / total
    squares = math.fsum(count * (reward - mean) ** 2 for reward, count in pairs)
    std = max(math.sqrt(squares / max(1, total - 1)), STD_FLOOR)
    return [(reward - mean) / std for reward in rewards]


def scaled(rewards: Sequence[float], centre: float) -> list[float]:
    """`(R - centre) / std`, the std being around the mean whatever the centre."""
    if all_equal(rewards):
        return [0.0] * len(rewards)
    std = max(statistics.stdev(rewards, mean_of(rewards)), STD_FLOOR)
    return [(reward - centre) / std for reward in rewards]


def centred(rewards: Sequence[float]) -> list[float]:
    """`R - mean`.

    >>> centred([0.0, 2.0, 4.0])
    [-2.0, 0.0, 2.0]
    """
    mean = mean_of(rewards)
    return [0.0 if all_equal(rewards) else reward - mean for reward in rewards]
