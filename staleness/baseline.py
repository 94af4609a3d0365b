"""What a rollout is expected to earn, known before its group is complete. Invariant: a baseline
depends on the others alone.

A baseline leaves the policy gradient unbiased if nothing of the rollout has a part in it, and that
includes *which* of the others are in it. A rollout may be taken once it is finished and `k` of the
others are judged; how many more are judged by then depends on how long it took itself, so the mean
over those judged so far is biased where reward has to do with length. The first `k` judged among
the others are the same whenever the rollout ends. So a slow rollout, which finds all the others
judged, still gets the first `k` of them and no more: they may be the short ones and far from what
is expected, but that costs variance and not bias. Not to be mixed: all the others for the slow
ones, k of them for the fast ones.

No torch here: the coordinator imports this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Prior(NamedTuple):
    """Mean of a prompt's rewards in earlier visits, and what they count for. A group is given the
    one there is when it is admitted, so that its own rewards can have no part in it."""

    mean: float = 0.0
    seen: float = 0.0


def first_k(others: Sequence[float], k: int) -> float:
    """Mean of the first `k` (>= 1) rewards of `others`, which are the rewards of the other members
    with a verdict, in the order in which they were judged. Raises ValueError where there are fewer
    than `k`: the rollout may not be taken yet."""
    if not 1 <= k <= len(others):
        raise ValueError(
            f"a baseline of the first {k} others needs as many verdicts among them, and there "
            f"are {len(others)}"
        )
    return math.fsum(others[:k]) / k


def shrunk(others: Sequence[float], k: int, prior: Prior, visits: float) -> float:
    """`first_k`, shrunk towards the prompt's prior: `(k * first_k + p * prior) / (k + p)` with `p =
    min(visits, prior.seen)`.

    `visits` (>= 0) is the weight of the prior beside the `k` others, in rewards. A prior never
    visited weighs nothing. Raises ValueError as `first_k` does.
    """
    weight = min(visits, prior.seen)
    return (k * first_k(others, k) + weight * prior.mean) / (k + weight)
