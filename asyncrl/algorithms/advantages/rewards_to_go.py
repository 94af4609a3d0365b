"""Rewards to go: the reward that an episode still earns from each of its turns on (`train.credit =
to_go`).

Invariant: each turn of a group is compared among all of its members. A member whose episode had
ended by then counts with 0.

A mean of the others alone leaves the gradient unbiased (`Rloo`). A mean that includes the member
itself makes it smaller (`DrGrpo`), by the same factor at each turn, since the number of members is
the same.

The reward of an episode is its whole reward. A turn's own reward is the part that was earned there,
so later turns are not credited with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, zip_longest

from asyncrl.algorithms.advantages.advantage import LARGEST, GroupAdvantage
from asyncrl.algorithms.advantages.normalization import all_equal


def rewards_to_go(reward: float, turns: Sequence[float]) -> list[float]:
    """At each turn, the episode's `reward` less those of the `turns` before it: so the rewards of
    this turn and later ones, and the part that belongs to no turn. Without turns there is one.
    Values are clamped to LARGEST, either sign.

    An episode of 1.5, of which 0.5 are for its first turn, and one of a single turn:

    >>> rewards_to_go(1.5, [0.5, 1.0]), rewards_to_go(1.5, [])
    ([1.5, 1.0], [1.5])
    """
    earned = accumulate(turns[:-1], initial=0.0)
    return [max(-LARGEST, min(LARGEST, reward - before)) for before in earned]


def differ_to_go(rewards: Sequence[float], turns: Sequence[Sequence[float]]) -> bool:
    """True if at any turn the rewards to go of a group's members differ. `turns` has the rewards of
    the turns of each member.

    >>> differ_to_go([1.0, 1.0], [[0.0, 1.0], [1.0, 0.0]]), differ_to_go([1.0, 1.0], [[], []])
    (True, False)
    """
    return not all(map(all_equal, by_turn(rewards, turns)))


def by_turn(rewards: Sequence[float], turns: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """The rewards to go of all members at each turn; 0 for those whose episodes had ended.

    >>> by_turn([1.0, 0.5], [[0.0, 1.0], [0.5]])
    [(1.0, 0.5), (1.0, 0.0)]
    """
    return _columns(_table(rewards, turns))


def turn_advantages(
    advantage: GroupAdvantage, rewards: Sequence[float], turns: Sequence[Sequence[float]]
) -> list[list[float]]:
    """Advantage of each turn of each member of a group, by its reward to go among those of all
    members at that turn. Raises ValueError where the advantage omits a member.

    The second member has ended when the first takes its second turn:

    >>> from asyncrl.algorithms.advantages import Rloo
    >>> turn_advantages(Rloo(), [1.0, 0.5], [[0.0, 1.0], [0.5]])
    [[0.5, 1.0], [-0.5]]
    """
    table = _table(rewards, turns)
    advantages = [advantage.of_group(column) for column in _columns(table)]
    return [
        [_known(advantages[turn][member]) for turn in range(len(row))]
        for member, row in enumerate(table)
    ]


def _table(rewards: Sequence[float], turns: Sequence[Sequence[float]]) -> list[list[float]]:
    return [rewards_to_go(*member) for member in zip(rewards, turns, strict=True)]


def _columns(table: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    return list(zip_longest(*table, fillvalue=0.0))


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("an advantage by turn must be a number for each member")
    return value
