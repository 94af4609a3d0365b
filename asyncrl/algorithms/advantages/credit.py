"""Credit: what each turn of an episode is worth (`train.credit`). Invariant: each turn of a group
is compared among all of its members, and a member whose episode had ended by then counts with 0.

`episode`  the whole reward of the episode, at each of its turns
`to_go`    the reward still to come (rewards_to_go.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import zip_longest
from typing import ClassVar

from asyncrl.algorithms.advantages.advantage import (
    Advantage,
    GroupAdvantage,
    RewardedSamples,
    Value,
    check_rewards,
    check_turns,
)


class Credit(ABC):
    """The worth of each turn of an episode. `by_turn`: turns of one episode may differ; then an
    advantage compares them turn by turn, and must be `GroupAdvantage.by_turn`.

    >>> class Discounted(Credit):
    ...     def returns(self, reward, turns):
    ...         return [reward * 0.5 ** (len(turns) - 1 - turn) for turn in range(len(turns))]
    >>> Discounted().returns(1.0, [0.0, 0.0, 1.0])
    [0.25, 0.5, 1.0]
    """

    kind: ClassVar[str] = ""
    by_turn: ClassVar[bool] = True

    @abstractmethod
    def returns(self, reward: float, turns: Sequence[float]) -> Sequence[float]:
        """The return of each turn of an episode of this `reward` (its whole reward, in which those
        of the `turns` are). Without turns, as where no agent played, there is one."""


class WholeReward(Credit):
    """The whole reward of the episode, at each of its turns.

    >>> WholeReward().returns(1.5, [0.5, 1.0])
    [1.5]
    """

    kind: ClassVar[str] = "episode"
    by_turn: ClassVar[bool] = False

    def returns(self, reward: float, turns: Sequence[float]) -> list[float]:
        return [reward]


def compared(
    credit: Credit, rewards: Sequence[float], turns: Sequence[Sequence[float]]
) -> list[tuple[float, ...]]:
    """The numbers that advantages of a group compare, at each turn: the returns of all members, 0
    for those whose episodes had ended.

    >>> compared(WholeReward(), [1.0, 0.5], [[0.0, 1.0], [0.5]])
    [(1.0, 0.5)]
    """
    return _columns(_table(credit, rewards, turns))


def turn_advantages(
    advantage: GroupAdvantage,
    credit: Credit,
    rewards: Sequence[float],
    turns: Sequence[Sequence[float]],
) -> list[list[float]]:
    """Advantage of each turn of each member of a group, by its return among those of all members at
    that turn. Raises ValueError where the advantage omits a member, and for a credit that has not
    one return for each turn.

    The second member has ended when the first takes its second turn:

    >>> from asyncrl.algorithms.advantages import Rloo
    >>> from asyncrl.algorithms.advantages.rewards_to_go import RewardsToGo
    >>> turn_advantages(Rloo(), RewardsToGo(), [1.0, 0.5], [[0.0, 1.0], [0.5]])
    [[0.5, 1.0], [-0.5]]
    """
    table = _table(credit, rewards, turns)
    for row, of_turns in zip(table, turns, strict=True):
        if len(row) != max(1, len(of_turns)):
            raise ValueError(
                f"the credit {credit.kind or type(credit).__name__} gives {len(row)} returns to an "
                f"episode of {max(1, len(of_turns))} turns; it must give one for each"
            )
    advantages = [advantage.of_group(column) for column in _columns(table)]
    return [
        [_known(advantages[turn][member]) for turn in range(len(row))]
        for member, row in enumerate(table)
    ]


class ByTurn(Advantage):
    """An advantage of a group, turn by turn of a credit: one value for each turn.

    >>> from asyncrl.algorithms.advantages import Rloo
    >>> from asyncrl.algorithms.advantages.rewards_to_go import RewardsToGo
    >>> from asyncrl.messages import Sample, Span
    >>> one = Sample(8, 4, 1, 3, 1.0, [Span(0, 1, 4)], member=0, turns=[(0, 2), (1, 1)])
    >>> given = RewardedSamples([one], {4: [1.0, 0.5]}, {}, turns={4: [[0.0, 1.0], [0.5]]})
    >>> ByTurn(Rloo(), RewardsToGo()).of(given)
    [[0.5, 1.0]]
    """

    def __init__(self, advantage: GroupAdvantage, credit: Credit) -> None:
        self._advantage, self._credit = advantage, credit

    def of(self, batch: RewardedSamples) -> list[Value]:
        """Advantages of the turns of each sample's rollout. Raises ValueError for rewards that are
        not finite, and turns that are not those of the group's members."""
        tables = dict[int, list[list[float]]]()
        for group in {sample.group for sample in batch.samples}:
            rewards = batch.rewards.get(group, ())
            check_rewards(group, rewards)
            turns = batch.turns.get(group, [()] * len(rewards))
            check_turns(group, rewards, turns)
            tables[group] = turn_advantages(self._advantage, self._credit, rewards, turns)
        return [
            tables[sample.group][self._advantage.member_index(sample, batch.rewards[sample.group])]
            for sample in batch.samples
        ]


def _table(
    credit: Credit, rewards: Sequence[float], turns: Sequence[Sequence[float]]
) -> list[Sequence[float]]:
    return [credit.returns(*member) for member in zip(rewards, turns, strict=True)]


def _columns(table: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    return list(zip_longest(*table, fillvalue=0.0))


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("an advantage by turn must be a number for each member")
    return value
