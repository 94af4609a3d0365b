"""Choice of trained groups to train once more, with the versions that sampled them. Invariant: no
token over `max_lag`, and no group without a signal.

The rollouts do not change, and their spans have the versions that sampled them. So lag, mask and
corrections work as for any old rollout (rollout replay: DOTS, arXiv 2506.05316). The replay buffer
ensures that none is replayed twice (asyncrl/experience/replay_buffer.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

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


class ReplayRule(Protocol):
    """Rule of which kept groups are trained once more (`train.replay`). All candidates are
    `useful`, so none is too old. It has no state of its own, so a resumed run chooses alike.

    >>> class Oldest(ReplayRule):
    ...     def choose(self, candidates, count):
    ...         ranked = sorted(candidates, key=lambda candidate: candidate.oldest)
    ...         return [candidate.group for candidate in ranked[:count]]
    >>> Oldest().choose([Candidate(1, 9, [(1.0, 0.0)]), Candidate(2, 7, [(1.0, 0.0)])], 1)
    [2]
    """

    def choose(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """Return the numbers of at most `count` (>= 0) of the candidates, each once."""
        ...


class MostVariance(ReplayRule):
    """Those whose rewards vary most (population variance; by turn: at the turn where they vary
    most), then the youngest, then those admitted last.

    Rewards (1, 0) have a variance of 0.25, and (1, 0, 0, 0) of 0.1875:

    >>> some = [Candidate(1, 9, [(1.0, 0.0, 0.0, 0.0)]), Candidate(2, 7, [(1.0, 0.0)])]
    >>> MostVariance().choose(some, count=2)
    [2, 1]
    """

    kind: ClassVar[str] = "variance"

    def choose(self, candidates: Sequence[Candidate], count: int) -> list[int]:
        ranked = [(max(map(_variance, c.compared)), c.oldest, c.group) for c in candidates]
        return [group for _, _, group in sorted(ranked, reverse=True)[:count]]


def replayed(
    rule: ReplayRule, candidates: Iterable[Candidate], step: int, max_lag: int, count: int
) -> list[int]:
    """Return at most `count` (>= 0) groups to train again in `step`, as the rule chooses among the
    useful ones. Raises ValueError for a choice that is no candidate, that comes twice, or of too
    many."""
    possible = [candidate for candidate in candidates if useful(candidate, step, max_lag)]
    chosen = list(rule.choose(possible, count))
    known = {candidate.group for candidate in possible}
    if len(chosen) > count or len(set(chosen)) < len(chosen) or not known.issuperset(chosen):
        raise ValueError(
            f"it chose the groups {chosen}; choose at most {count} of {sorted(known)}, each once"
        )
    return chosen


def _variance(rewards: Sequence[float]) -> float:
    mean = math.fsum(rewards) / len(rewards)
    return math.fsum((reward - mean) * (reward - mean) for reward in rewards) / len(rewards)
