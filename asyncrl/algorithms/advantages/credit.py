"""Credit: what each turn of an episode is worth (`train.credit`). Invariant: each turn of a group
is compared among all of its members, and a member whose episode had ended by then counts as 0.

`episode`  the whole reward of the episode, at each of its turns
`to_go`    the reward still to come (rewards_to_go.py)
`below`    the reward at and below it in the tree of calls (below.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import zip_longest
from typing import ClassVar, NamedTuple

from asyncrl.algorithms.advantages.advantage import (
    Advantage,
    GroupAdvantage,
    RewardedSamples,
    Value,
    check_rewards,
    check_turns,
)
from asyncrl.algorithms.selection.prompt_history import Signal

Column = tuple[float, ...]
"""The numbers of all members that an advantage compares at once."""


class PlayedMember(NamedTuple):
    """A member of a group: its whole reward, the rewards of its turns, and the turns directly above
    each; empty where each lies below the one before it.

    >>> PlayedMember(1.0, [0.0, 1.0]).above
    ()
    """

    reward: float
    turns: Sequence[float] = ()
    above: Sequence[Sequence[int]] = ()


class Credit(ABC):
    """The worth of each turn of an episode. `by_turn`: turns of one episode may differ; then an
    advantage compares them turn by turn, and must be `GroupAdvantage.by_turn`. `signal`: groups of
    equal rewards have a signal where their rewards to go differ, or those below a turn.
    `of_branches`: it is for agents that call twice from one context, and give each end a reward.

    >>> class Discounted(Credit):
    ...     def returns(self, reward, turns):
    ...         return [reward * 0.5 ** (len(turns) - 1 - turn) for turn in range(len(turns))]
    >>> Discounted().returns(1.0, [0.0, 0.0, 1.0])
    [0.25, 0.5, 1.0]
    """

    kind: ClassVar[str] = ""
    by_turn: ClassVar[bool] = True
    signal: ClassVar[Signal] = "to_go"
    of_branches: ClassVar[bool] = False

    @abstractmethod
    def returns(self, reward: float, turns: Sequence[float]) -> Sequence[float]:
        """The return of each turn of an episode of this `reward` (its whole reward, in which those
        of the `turns` are). Without turns, as where no agent played, there is one."""

    def columns(self, members: Sequence[PlayedMember]) -> list[list[Column]]:
        """For each turn of each member the numbers that it is compared among, one of each member,
        its own at the member's place: the returns at the same turn, 0 where an episode had
        ended."""
        table = [self.returns(member.reward, member.turns) for member in members]
        at_turn = list(zip_longest(*table, fillvalue=0.0))
        return [at_turn[: len(row)] for row in table]


class WholeReward(Credit):
    """The whole reward of the episode, at each of its turns.

    >>> WholeReward().returns(1.5, [0.5, 1.0])
    [1.5]
    """

    kind: ClassVar[str] = "episode"
    by_turn: ClassVar[bool] = False
    signal: ClassVar[Signal] = "rewards"

    def returns(self, reward: float, turns: Sequence[float]) -> list[float]:
        return [reward]


def compared(
    credit: Credit,
    rewards: Sequence[float],
    turns: Sequence[Sequence[float]],
    above: Sequence[Sequence[Sequence[int]]],
) -> list[Column]:
    """The numbers that advantages of a group compare: at each turn the returns of all members, 0
    for those whose episodes had ended. Where turns of a number are compared among others, those of
    the longest episode come first.

    >>> compared(WholeReward(), [1.0, 0.5], [[0.0, 1.0], [0.5]], [])
    [(1.0, 0.5)]
    """
    columns = credit.columns(_members(rewards, turns, above))
    longest = max(columns, key=len, default=[])
    known = set(longest)
    return longest + list(dict.fromkeys(c for row in columns for c in row if c not in known))


def turn_advantages(
    advantage: GroupAdvantage,
    credit: Credit,
    rewards: Sequence[float],
    turns: Sequence[Sequence[float]],
    above: Sequence[Sequence[Sequence[int]]] = (),
) -> list[list[float]]:
    """Advantage of each turn of each member of a group, by its return among those that it is
    compared with. Raises ValueError where the advantage omits a member, and for a credit without
    one return for each turn.

    The second member has ended when the first takes its second turn:

    >>> from asyncrl.algorithms.advantages import Rloo
    >>> from asyncrl.algorithms.advantages.rewards_to_go import RewardsToGo
    >>> turn_advantages(Rloo(), RewardsToGo(), [1.0, 0.5], [[0.0, 1.0], [0.5]])
    [[0.5, 1.0], [-0.5]]
    """
    columns = credit.columns(_members(rewards, turns, above))
    for row, of_turns in zip(columns, turns, strict=True):
        if len(row) != max(1, len(of_turns)):
            raise ValueError(
                f"the credit {credit.kind or type(credit).__name__} gives {len(row)} returns to an "
                f"episode of {max(1, len(of_turns))} turns; it must give one for each"
            )
    different = dict.fromkeys(column for row in columns for column in row)
    of_column = {column: advantage.of_group(column) for column in different}
    return [
        [_known(of_column[column][member]) for column in row] for member, row in enumerate(columns)
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
            above = batch.above.get(group, ())
            check_turns(group, rewards, turns, above)
            tables[group] = turn_advantages(self._advantage, self._credit, rewards, turns, above)
        return [
            tables[sample.group][self._advantage.member_index(sample, batch.rewards[sample.group])]
            for sample in batch.samples
        ]


def _members(
    rewards: Sequence[float],
    turns: Sequence[Sequence[float]],
    above: Sequence[Sequence[Sequence[int]]],
) -> list[PlayedMember]:
    given = zip(rewards, turns, above or [()] * len(rewards), strict=True)
    return [PlayedMember(*member) for member in given]


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("an advantage by turn must be a number for each member")
    return value
