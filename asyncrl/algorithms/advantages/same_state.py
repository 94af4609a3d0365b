"""Turns of one state, for advantages that compare them. Invariant: a turn is never compared with
another turn of its own episode, unless a class says that it is as published.

A state is the key that an agent gives to a turn (`Step(key=…)`). The return of a turn is its reward
to go. What an episode earns later depends on its own action, so a mean that includes it is biased;
other episodes are independent of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from asyncrl.algorithms.advantages.advantage import (
    Advantage,
    RewardedSamples,
    Value,
    check_rewards,
    check_turns,
)
from asyncrl.algorithms.advantages.rewards_to_go import rewards_to_go


class MemberTurn(NamedTuple):
    """A turn: its member of the group, and its number.

    >>> MemberTurn(member=1, turn=0)
    MemberTurn(member=1, turn=0)
    """

    member: int
    turn: int


class PlayedGroup(NamedTuple):
    """Episodes of one prompt: their rewards, the returns of their turns, and the keys of these.

    >>> group = PlayedGroup([1.0, 0.0], [[1.0, 1.0], [0.0]], [["a", "b"], ["a"]])
    >>> list(group.alike(MemberTurn(0, 0), k=1)), group.of_others(MemberTurn(0, 1), k=1)
    ([MemberTurn(member=0, turn=0), MemberTurn(member=1, turn=0)], [])
    """

    rewards: Sequence[float]
    to_go: Sequence[Sequence[float]]
    keys: Sequence[Sequence[str]]

    def alike(self, place: MemberTurn, k: int) -> Iterator[MemberTurn]:
        """The turns with the same last `k` (>= 1) states, this one included; none where there are
        fewer, or one has no key."""
        states = self._states(place, k)
        for member, row in enumerate(self.to_go) if states else ():
            for turn in range(len(row)):
                if self._states(MemberTurn(member, turn), k) == states:
                    yield MemberTurn(member, turn)

    def of_others(self, place: MemberTurn, k: int) -> list[float]:
        """The returns of such turns in the episodes of others."""
        found = self.alike(place, k)
        return [self.to_go[o.member][o.turn] for o in found if o.member != place.member]

    def at_turn(self, place: MemberTurn) -> list[float]:
        """The returns of the others at the same turn, 0 for those that had ended."""
        others = (row for member, row in enumerate(self.to_go) if member != place.member)
        return [row[place.turn] if place.turn < len(row) else 0.0 for row in others]

    def _states(self, place: MemberTurn, k: int) -> tuple[str, ...]:
        keys = self.keys[place.member]
        states = tuple(keys[max(0, place.turn - k + 1) : place.turn + 1])
        return states if len(states) == k and all(states) else ()


class TurnAdvantage(Advantage):
    """An advantage of each turn of the episodes of a group.

    >>> class Returns(TurnAdvantage):
    ...     def of_turn(self, group, place):
    ...         return group.to_go[place.member][place.turn]
    >>> from asyncrl.messages import Sample
    >>> one = Sample(8, 4, 1, 3, 1.0, [], member=0)
    >>> Returns().of(RewardedSamples([one], {4: [1.0]}, {}, turns={4: [[0.25, 0.75]]}))
    [[1.0, 0.75]]
    """

    equal_has_signal: ClassVar[bool] = True

    @abstractmethod
    def of_turn(self, group: PlayedGroup, place: MemberTurn) -> float:
        """Advantage of one turn."""

    def of(self, batch: RewardedSamples) -> list[Value]:
        """One value for each turn of each sample's rollout. Raises ValueError for rewards or turns
        that are not those of a group's members."""
        groups, values = dict[int, PlayedGroup](), list[Value]()
        for sample in batch.samples:
            if (group := groups.get(sample.group)) is None:
                group = groups[sample.group] = _played(batch, sample.group)
            if sample.member is None or not 0 <= sample.member < len(group.rewards):
                raise ValueError(f"rollout {sample.rollout} does not name its member of the group")
            turns = range(len(group.to_go[sample.member]))
            values.append([self.of_turn(group, MemberTurn(sample.member, turn)) for turn in turns])
        return values


def _played(batch: RewardedSamples, number: int) -> PlayedGroup:
    rewards = batch.rewards.get(number, ())
    nothing: Sequence[Sequence[float]] = [()] * len(rewards)
    unnamed: Sequence[Sequence[str]] = [()] * len(rewards)
    turns, keys = batch.turns.get(number, nothing), batch.keys.get(number, unnamed)
    check_rewards(number, rewards)
    check_turns(number, rewards, turns)
    to_go = [rewards_to_go(*member) for member in zip(rewards, turns, strict=True)]
    return PlayedGroup(rewards, to_go, keys)
