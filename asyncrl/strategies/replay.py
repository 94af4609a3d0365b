"""Which trained groups are trained once more, with the versions that sampled them. Invariant: no token over `max_lag`, no group without a
signal, and none more often than is allowed.

The rollouts stay what they were, and their spans tell the truth, so lag, mask and corrections are those of any old rollout (rollout replay:
DOTS, arXiv 2506.05316).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec


class Candidate(msgspec.Struct, frozen=True):
    """A group that was trained: the smallest version among its tokens, its rewards, and how often it was trained again."""

    group: int
    oldest: int
    rewards: tuple[float, ...]
    replays: int = 0


def useful(candidate: Candidate, step: int, max_lag: int, times: int = 1) -> bool:
    """Whether `step` can train it again, at most the `times`-th time. What is not useful for a step is not for a later one either: it need
    not be kept."""
    return candidate.replays < times and step - candidate.oldest <= max_lag and len(set(candidate.rewards)) > 1


def replayed(candidates: Iterable[Candidate], step: int, max_lag: int, count: int, times: int = 1) -> list[int]:
    """At most `count` (>= 0) groups to train again in `step`: those whose rewards vary most (population variance), then the youngest, then
    those admitted last. Fewer where fewer are useful."""
    found = [(_variance(c.rewards), c.oldest, c.group) for c in candidates if useful(c, step, max_lag, times)]
    return [group for _, _, group in sorted(found, reverse=True)[:count]]


def _variance(rewards: Sequence[float]) -> float:
    mean = math.fsum(rewards) / len(rewards)
    return math.fsum((reward - mean) * (reward - mean) for reward in rewards) / len(rewards)
