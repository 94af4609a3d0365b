"""Baseline of a rollout that is trained before its group is complete. Invariant: it depends on the
others alone.

A baseline leaves the policy gradient unbiased if nothing of the rollout has a part in it. That
includes *which* of the others are in it. A rollout may be taken once it is finished and `k` of the
others are judged. More of them may be judged by then, and their number depends on how long the
rollout took itself. So the mean over all judged so far is biased where reward has to do with
length. The first `k` judged of the others are the same whenever the rollout ends.

Unbiased is the *baseline*. What is trained at all is another matter: where rollouts leave because
of their length (verdicts that long answers lose, responses left out as stale), or where an engine
has fewer slots than a group has members, so that a rollout's length decides when its siblings
start, the gradient is one of a selection (`tests/staleness/test_selection.py` measures each).

A slow rollout finds all the others judged, and still gets the first `k` of them and no more. They
may be the short ones, and far from what is expected: that costs variance, and not bias. The two are
not to be mixed: all the others for slow rollouts, and k of them for fast ones.

No torch here: the coordinator imports this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Prior(NamedTuple):
    """Mean of a prompt's rewards in earlier visits, and `seen`, the number of rewards that they
    count for. A group is given its prior when it is admitted, so its own rewards have no part in
    it.

    >>> shrunk([1.0, 0.0, 0.0], k=2, prior=Prior(mean=1.0, seen=6.0), visits=2.0)
    0.75
    """

    mean: float = 0.0
    seen: float = 0.0


def first_k(others: Sequence[float], k: int) -> float:
    """Return the mean of the first `k` (>= 1) of `others`: the rewards of the other members with a
    verdict, in the order in which they were judged.

    Raises ValueError where there are fewer than `k`: the rollout may not be taken yet. Example:
    [1.0, 0.0, 1.0] and k = 2 give 0.5.
    """
    if not 1 <= k <= len(others):
        raise ValueError(
            f"a baseline of the first {k} others needs as many verdicts among them, and there "
            f"are {len(others)}"
        )
    return math.fsum(others[:k]) / k


def shrunk(others: Sequence[float], k: int, prior: Prior, visits: float) -> float:
    """Return `first_k`, shrunk towards the prompt's prior: `(k * first_k + p * prior) / (k + p)`
    with `p = min(visits, prior.seen)`.

    `visits` (>= 0) is the weight of the prior beside the `k` others, in rewards. A prior never
    visited weighs nothing. Raises ValueError as `first_k` does. Example: a first_k of 0.5 with
    k = 2, and a prior of 1.0 with p = 2, give 0.75.
    """
    weight = min(visits, prior.seen)
    return (k * first_k(others, k) + weight * prior.mean) / (k + weight)
