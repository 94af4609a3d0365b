"""Rewards to go: what an episode was still to earn at each of its turns (`train.credit = to_go`).

Invariant: each turn of a group is compared among all of its members. One whose episode had ended
by then has nothing to come, and counts with 0.

A mean of the others alone leaves the gradient unbiased (`Rloo`). One that has the member itself in
it makes it smaller (`DrGrpo`), and by the same at each turn, since as many are compared at each.

The reward of an episode is its whole reward. A turn's own reward says that this part of it was
earned there, so that turns after it are not credited with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, zip_longest

from asyncrl.algorithms.advantages.advantage import LARGEST, GroupAdvantage
from asyncrl.algorithms.advantages.normalization import all_equal


def rewards_to_go(reward: float, turns: Sequence[float]) -> list[float]:
    """At each turn, the episode's `reward` less those of the `turns` before it: so the rewards of
    this turn and later ones, and what is no turn's. Without turns there is one. What would be
    larger than LARGEST, either sign, is that.

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
    members at that turn. Raises ValueError where it leaves a member out.

    The second member has ended when the first takes its second turn:

    >>> from asyncrl.algorithms.advantages import Rloo
    >>> turn_advantages(Rloo(), [1.0, 0.5], [[0.0, 1.0], [0.5]])
    [[0.5, 1.0], [-0.5]]
    """
    table = _table(rewards, turns)
    found = [advantage.of_group(column) for column in _columns(table)]
    return [
        [_known(found[turn][member]) for turn in range(len(row))]
        for member, row in enumerate(table)
    ]


def _table(rewards: Sequence[float], turns: Sequence[Sequence[float]]) -> list[list[float]]:
    return [rewards_to_go(*member) for member in zip(rewards, turns, strict=True)]


def _columns(table: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    return list(zip_longest(*table, fillvalue=0.0))


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("an advantage by turn must give each member a number")
    return value
