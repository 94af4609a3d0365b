"""The replay buffer: trained groups that are kept to be trained once more. Invariant: each is
replayed at most once, and by no step after its last.

A kept group is over for the ledger: it was trained, and is counted there once. Each of its tokens
keeps the version and the log-probability that it was sampled with.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asyncrl.experience.call import ImpossibleEvent, RolloutStatus
from asyncrl.experience.episode import Strand, Turn, sequences, turn_rewards
from asyncrl.experience.group_facts import GroupFacts
from asyncrl.experience.rollout import Group
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.messages import Finish, Scored, Span


class ReplayMember(msgspec.Struct, array_like=True):
    """A rollout as it was trained: its arrays, spans, finish, turns and strands as in `Rollout`,
    its reward, the parts of that, and the errors that its verifier found."""

    rollout: int
    ids: bytearray
    behaviour: bytearray
    spans: list[Span]
    reward: float
    parts: list[float]
    finish: Finish = ""
    errors: list[tuple[int, int]] = []
    turns: list[Turn] = []
    strands: list[Strand] = []


class ReplayGroup(msgspec.Struct, array_like=True):
    """A group that was trained: its prompt (`int32` ids) and its members with a reward. `until` is
    the last step that may replay it."""

    group: int
    prompt: bytes
    until: int
    members: list[ReplayMember]

    @property
    def rewards(self) -> tuple[float, ...]:
        """The rewards, in the order of `members`."""
        return tuple(member.reward for member in self.members)

    @property
    def turns(self) -> list[list[float]]:
        """The rewards of the turns of each of the `members`."""
        return [turn_rewards(member.turns) for member in self.members]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The sampled tokens of each of the `members`."""
        return tuple(len(member.ids) >> 2 for member in self.members)

    @property
    def facts(self) -> GroupFacts:
        """The facts that its members' advantages are made of, as `Group.facts`."""
        parts = [member.parts for member in self.members]
        return GroupFacts(list(self.rewards), parts, list(self.lengths), self.turns)

    def sequences(self, member: ReplayMember) -> list[TrainingSequence]:
        """Sequences of a member, to be trained again, as `Group.sequences` gave them."""
        if member.strands:
            return sequences(
                member.ids,
                member.behaviour,
                member.spans,
                member.turns,
                member.strands,
                member.errors,
            )
        return [
            TrainingSequence.single_turn(
                self.prompt,
                member.ids,
                member.behaviour,
                member.spans,
                member.finish,
                member.errors,
            )
        ]

    @property
    def oldest(self) -> int:
        """The smallest version that sampled a token; `until` where there is no token."""
        return min(
            (span.version for member in self.members for span in member.spans), default=self.until
        )

    @property
    def tokens(self) -> int:
        """Response tokens held."""
        return sum(len(member.ids) for member in self.members) >> 2


class ReplayBuffer(msgspec.Struct):
    """The kept groups by their numbers, in the order in which they were kept."""

    kept: dict[int, ReplayGroup] = msgspec.field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Response tokens held."""
        return sum(kept.tokens for kept in self.kept.values())

    def keep(self, group: Group, until: int) -> None:
        """Keep the members with a reward of a group that a step has taken. It shares their arrays:
        call it before their tokens are released, which leaves these arrays as they are. Raises
        ImpossibleEvent for a group that no step has taken, of which any member was trained already,
        or that is kept already."""
        if group.id in self.kept:
            raise ImpossibleEvent(f"group {group.id} is kept already")
        if any(
            member.step is not None and member.status is not RolloutStatus.TAKEN
            for member in group.members
        ):
            raise ImpossibleEvent(
                f"group {group.id} was trained before it was kept, in part at least: its tokens "
                "are released"
            )
        members = [
            ReplayMember(
                m.id,
                m.ids,
                m.behaviour,
                m.spans,
                m.verdict.reward,
                m.verdict.parts,
                m.finish,
                m.verdict.errors,
                m.turns,
                m.strands,
            )
            for m in group.members
            if isinstance(m.verdict, Scored) and m.step is not None
        ]
        if not members:
            raise ImpossibleEvent(f"group {group.id} was not taken: there is nothing to replay")
        self.kept[group.id] = ReplayGroup(group.id, group.prompt, until, members)

    def replay(self, step: int, groups: Sequence[int]) -> list[ReplayGroup]:
        """`step` trains these groups again, and they are not kept any longer. Raises
        ImpossibleEvent, with all as it was, for a group that is not kept, that is named twice, or
        whose last step is over."""
        for number in groups:
            kept = self.kept.get(number)
            if kept is None or groups.count(number) > 1:
                raise ImpossibleEvent(
                    f"group {number} is not kept for replay, or was replayed already"
                )
            if kept.until < step:
                raise ImpossibleEvent(
                    f"group {number} may be replayed until step {kept.until}, and this is "
                    f"step {step}"
                )
        return [self.kept.pop(number) for number in groups]

    def publish(self, version: int) -> None:
        """The steps before `version` are over: forget the groups that no later one may replay."""
        for number in [number for number, kept in self.kept.items() if kept.until < version]:
            del self.kept[number]
