"""Which trained groups are trained once more, with the versions that sampled them. Invariant: no
token over `max_lag`, and no group without a signal.

The rollouts stay what they were, and their spans tell the truth, so lag, mask and corrections are
those of any old rollout (rollout replay: DOTS, arXiv 2506.05316). That none is replayed twice is
the business of who keeps them (asyncrl/experience/replay_buffer.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec


class Candidate(msgspec.Struct, frozen=True):
    """A group that was trained: the smallest version among its tokens, and its rewards."""

    group: int
    oldest: int
    rewards: tuple[float, ...]


def useful(candidate: Candidate, step: int, max_lag: int) -> bool:
    """Whether `step` can train it again. What is not useful for a step is not for a later one
    either: it need not be kept."""
    return step - candidate.oldest <= max_lag and len(set(candidate.rewards)) > 1


def replayed(candidates: Iterable[Candidate], step: int, max_lag: int, count: int) -> list[int]:
    """At most `count` (>= 0) groups to train again in `step`: those whose rewards vary most
    (population variance), then the youngest, then those admitted last. Fewer where fewer are
    useful."""
    found = [
        (_variance(c.rewards), c.oldest, c.group) for c in candidates if useful(c, step, max_lag)
    ]
    return [group for _, _, group in sorted(found, reverse=True)[:count]]


def _variance(rewards: Sequence[float]) -> float:
    mean = math.fsum(rewards) / len(rewards)
    return math.fsum((reward - mean) * (reward - mean) for reward in rewards) / len(rewards)
