"""Choice of trained groups to train once more, with the versions that sampled them. Invariant: no
token over `max_lag`, and no group without a signal.

The rollouts do not change, and their spans have the versions that sampled them. So lag, mask and
corrections work as for any old rollout (rollout replay: DOTS, arXiv 2506.05316). The replay buffer
ensures that none is replayed twice (asyncrl/experience/replay_buffer.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec


class Candidate(msgspec.Struct, frozen=True):
    """A trained group: its number, the smallest version among its tokens, and the rewards that its
    advantages compare: those of its members, or at each turn those to go.

    >>> useful(Candidate(group=9, oldest=3, compared=[(1.0, 0.0)]), step=5, max_lag=2)
    True
    """

    group: int
    oldest: int
    compared: Sequence[tuple[float, ...]]


def useful(candidate: Candidate, step: int, max_lag: int) -> bool:
    """Return True if `step` can train it again. A candidate that is not useful for a step is not
    useful for a later one either, so it need not be kept."""
    differ = any(len(set(rewards)) > 1 for rewards in candidate.compared)
    return step - candidate.oldest <= max_lag and differ


def replayed(candidates: Iterable[Candidate], step: int, max_lag: int, count: int) -> list[int]:
    """Return at most `count` (>= 0) groups to train again in `step`: those whose rewards vary most
    (population variance; by turn: at the turn where they vary most), then the youngest, then those
    admitted last. Fewer where fewer are useful.

    Example: rewards (1, 0), (1, 1) and (1, 0, 0, 0) have variances 0.25, 0 and 0.1875. With
    `count` 2 the first and the third are chosen, in this order.
    """
    ranked = [
        (max(map(_variance, c.compared)), c.oldest, c.group)
        for c in candidates
        if useful(c, step, max_lag)
    ]
    return [group for _, _, group in sorted(ranked, reverse=True)[:count]]


def _variance(rewards: Sequence[float]) -> float:
    mean = math.fsum(rewards) / len(rewards)
    return math.fsum((reward - mean) * (reward - mean) for reward in rewards) / len(rewards)
