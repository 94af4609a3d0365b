"""Rewards to go: the reward that an episode still earns from each of its turns on (`train.credit =
to_go`).

A mean of the others alone leaves the gradient unbiased (`Rloo`). A mean that includes the member
itself makes it smaller (`DrGrpo`), by the same factor at each turn, since the number of members is
the same.

The reward of an episode is its whole reward. A turn's own reward is the part that was earned there,
so later turns are not credited with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

from asyncrl.algorithms.advantages.advantage import LARGEST
from asyncrl.algorithms.advantages.credit import Credit, compared
from asyncrl.algorithms.advantages.normalization import all_equal


class RewardsToGo(Credit):
    """The reward still to come at each turn.

    >>> RewardsToGo().returns(1.5, [0.5, 1.0])
    [1.5, 1.0]
    """

    kind: ClassVar[str] = "to_go"

    def returns(self, reward: float, turns: Sequence[float]) -> list[float]:
        return rewards_to_go(reward, turns)


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
    the turns of each member. Where they do not, no credit by turn can differ by them.

    >>> differ_to_go([1.0, 1.0], [[0.0, 1.0], [1.0, 0.0]]), differ_to_go([1.0, 1.0], [[], []])
    (True, False)
    """
    return not all(map(all_equal, compared(RewardsToGo(), rewards, turns, [])))
