"""Which trained groups are trained once more, with the versions that sampled them. Invariant: no token over `max_lag`, no group without a
signal, and none more often than is allowed.

The rollouts stay what they were, and their spans tell the truth, so lag, mask and corrections are those of any old rollout (rollout replay:
DOTS, arXiv 2506.05316).
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import pvariance

import msgspec


class Trained(msgspec.Struct, frozen=True):
    """A group that was trained: the smallest version among its tokens, its rewards, and how often it was trained again."""

    group: int
    oldest: int
    rewards: tuple[float, ...]
    replays: int = 0


def useful(trained: Trained, step: int, max_lag: int, times: int = 1) -> bool:
    """Whether `step`, or a later one, can train it again. What is not useful now never will be: it need not be kept."""
    return trained.replays < times and step - trained.oldest <= max_lag and len(set(trained.rewards)) > 1


def replayed(candidates: Iterable[Trained], step: int, max_lag: int, count: int, times: int = 1) -> list[int]:
    """At most `count` groups to train again in `step`: those whose rewards vary most (population variance), then the youngest, then
    those admitted last. Fewer where fewer are useful."""
    found = [(pvariance(c.rewards), c.oldest, c.group) for c in candidates if useful(c, step, max_lag, times)]
    return [group for _, _, group in sorted(found, reverse=True)[:count]]
