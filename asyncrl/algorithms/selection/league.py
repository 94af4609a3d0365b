"""Rules that draw past versions of a policy as opponents (`draw` of a frozen `[[policy]]`).

A rule weighs the versions; the draw is keyed by seed, policy and group, and is kept on the disk. So
all games of a group meet one version, and a resumed game meets the one that it met.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class PastVersion(NamedTuple):
    """A version that can be drawn, the games that it has ended, and the mean of its rewards in
    them.

    >>> PastVersion(40, games=2, reward=0.5).version
    40
    """

    version: int
    games: int = 0
    reward: float = 0.0


class LeagueRule(Protocol):
    """Rule that weighs past versions. It has no state of its own.

    >>> class Oldest(LeagueRule):
    ...     def weights(self, past):
    ...         return [1.0, *[0.0 for _ in past[1:]]]
    >>> drawn(Oldest(), [PastVersion(0), PastVersion(20)], "a key")
    0
    """

    @abstractmethod
    def weights(self, past: Sequence[PastVersion]) -> Sequence[float]:
        """A weight for each version, the oldest first: one that is drawn twice as often has twice
        the weight."""
        ...


def drawn(rule: LeagueRule, past: Sequence[PastVersion], key: str) -> int:
    """The version that a rule and a key draw. Raises ValueError where the rule's weights are
    none.

    >>> from asyncrl.algorithms.selection.league_uniform import Uniform
    >>> {drawn(Uniform(), [PastVersion(0), PastVersion(9)], f"key {n}") for n in range(20)}
    {0, 9}
    """
    weights = [*rule.weights(past)]
    fit = len(weights) == len(past) and all(math.isfinite(w) and w >= 0 for w in weights)
    if not fit or not sum(weights):
        raise ValueError(
            f"{type(rule).__name__} weighs {len(past)} versions as {weights}: give each a weight "
            "of 0 or more, and one of them more than 0"
        )
    return random.Random(key).choices(past, weights)[0].version


def superfluous(versions: Sequence[int]) -> int:
    """The version of three or more that is closest to its neighbours, and whose loss costs least;
    the oldest and the newest stay. Of two, the older one.

    >>> superfluous([0, 20, 30, 60, 80]), superfluous([0, 20])
    (20, 0)
    """
    ordered = sorted(versions)
    inner = range(1, len(ordered) - 1)
    return (
        min((ordered[place + 1] - ordered[place - 1], ordered[place]) for place in inner)[1]
        if inner
        else ordered[0]
    )
