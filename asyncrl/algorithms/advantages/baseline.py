"""Baseline of a rollout that is trained before its group is complete. Invariant: it depends on the
others alone.

A baseline leaves the policy gradient unbiased if it does not depend on the rollout. That includes
the choice of the others in it. A rollout may be taken once it is finished and `k` of the others are
judged. More of them may be judged by then, and their number depends on the duration of the rollout
itself. So the mean over all judged so far is biased where reward correlates with length. The first
`k` judged of the others are the same whenever the rollout ends.

Only the *baseline* is unbiased. The selection of trained rollouts may not be: where rollouts drop
out because of their length (long answers without a verdict, stale responses), or where an engine
has fewer slots than a group has members, so that a rollout's length decides when its siblings start
(`tests/staleness/test_selection.py` measures each).

When a slow rollout ends, all others are judged, but it still uses only the first `k` of them. They
may be the short ones, far from the expected reward: that adds variance, but no bias. Using all the
others for slow rollouts, and k of them for fast ones, would be biased.

No torch here: the coordinator imports this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Prior(NamedTuple):
    """Mean of a prompt's rewards in earlier visits, and `seen`, the number of rewards as which it
    counts. A group gets its prior when it is admitted, so its own rewards are not in it.

    >>> shrunk([1.0, 0.0, 0.0], k=2, prior=Prior(mean=1.0, seen=6.0), visits=2.0)
    0.75
    """

    mean: float = 0.0
    seen: float = 0.0


def first_k(others: Sequence[float], k: int) -> float:
    """Return the mean of the first `k` (>= 1) of `others`: the rewards of the other members with a
    verdict, in the order in which they were judged.

    Raises ValueError where there are fewer than `k`: the rollout must not be taken yet. Example:
    [1.0, 0.0, 1.0] and k = 2 give 0.5.
    """
    if not 1 <= k <= len(others):
        raise ValueError(
            f"a baseline of the first {k} others needs as many verdicts among them, but there are "
            f"{len(others)}"
        )
    return math.fsum(others[:k]) / k


def shrunk(others: Sequence[float], k: int, prior: Prior, visits: float) -> float:
    """Return `first_k`, shrunk towards the prompt's prior: `(k * first_k + p * prior) / (k + p)`
    with `p = min(visits, prior.seen)`.

    `visits` (>= 0) is the weight of the prior beside the `k` others, in rewards. A prior without
    visits has no weight. Raises ValueError as `first_k` does. Example: a first_k of 0.5 with k = 2,
    and a prior of 1.0 with p = 2, give 0.75.
    """
    weight = min(visits, prior.seen)
    return (k * first_k(others, k) + weight * prior.mean) / (k + weight)
