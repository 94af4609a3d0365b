"""Sizes that a group may have once its members are judged, worked out a second time: by trying
sizes, and from tables. Invariant: no code is shared with `asyncrl.algorithms.selection`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from fractions import Fraction

from asyncrl.config import Config

GROWING = frozenset({"dars", "dars_hard", "v05", "xrpo"})
"""Sizings that ask about a group again."""
QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""Student's 0.975, by degrees of freedom from 1 on; further ones from FURTHER."""
FURTHER = (2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860)
CLOSE = 1e-4
"""Distance of a number from its threshold up to which both sizes are right: tables are rounded."""


def due_sizes(
    config: Config, size: int, rewards: Sequence[float], solved: int, solve_rate: float
) -> set[int]:
    """The sizes that are right for a group of `size` whose members have these `rewards`, of which
    `solved` are fully right, where the prompt's solve rate was known as `solve_rate`."""
    rollout = config.rollout
    if size == rollout.group_size_max or not rewards or rollout.sizing not in GROWING:
        return {size}
    if rollout.sizing.startswith("dars"):
        return {_dars(config, size, Fraction(solved, len(rewards)))}
    if rollout.sizing == "v05":
        more, fall, least = 1, _v05(len(rewards), statistics.fmean(rewards), solve_rate), 0.0039
    else:
        more = min(rollout.group_size, rollout.group_size_max - size)
        fall, least = _xrpo(rewards, more), 0.1
    return {size + more * (fall > bound) for bound in (least - CLOSE, least + CLOSE)}


def _dars(config: Config, size: int, share: Fraction) -> int:
    """The first size at which the advantages add up to enough."""
    rollout = config.rollout
    if size > rollout.group_size or share >= Fraction(1, 2):
        return size
    share = share or Fraction(1, 2 * size)
    wanted = size * (Fraction(1, 2) if rollout.sizing == "dars" else 1 - share)
    sizes = range(size, rollout.group_size_max + 1)
    enough = (n for n in sizes if n * share * (1 - share) * 2 >= wanted)
    return next(enough, rollout.group_size_max)


def _v05(k: int, mean: float, solve_rate: float) -> float:
    """The fall of the error by one more, of rewards from -1 to 1."""
    apart = (2 * mean - 1) - (2 * solve_rate - 1)
    bias = max(0.0, apart**2 - 1 / k)
    if not bias:
        return 0.0

    def error(n: int) -> float:  # of the mean of n, weighted by how far it is from the prior
        weight = bias / (bias + 1 / n)
        return weight**2 / n + (1 - weight) ** 2 * bias

    return error(k) - error(k + 1)


def _xrpo(rewards: Sequence[float], more: int) -> float:
    """The fall of half of the mean's interval by so many more; above any bound for one reward."""
    n, quantiles = len(rewards), QUANTILES + FURTHER
    if n < 2:
        return 1e9
    mean = statistics.fmean(rewards)
    spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (n - 1))
    half, then = (spread * quantiles[count - 2] / math.sqrt(count) for count in (n, n + more))
    return half - then
