"""The replay buffer: trained groups that are kept to be trained once more. Invariant: each is
replayed at most once, and not after its last step.

For the ledger a kept group has ended: it was trained, and is counted once. Each of its tokens keeps
the version and the log-probability of its sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asyncrl.experience.call import ImpossibleEvent, RolloutStatus
from asyncrl.experience.episode import Strand, Turn, sequences, turn_keys, turn_rewards, turns_above
from asyncrl.experience.group import Group
from asyncrl.experience.group_facts import GroupFacts
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.messages import DrawnMembers, Finish, PromptFacts, Scored, Span


class ReplayMember(msgspec.Struct, array_like=True):
    """A rollout as it was trained: its arrays, spans, finish, turns and strands as in `Rollout`,
    its reward and parts, and the errors that its verifier found; at the end its routing, and the
    images of its contexts."""

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
    routing: bytearray = msgspec.field(default_factory=bytearray)
    images: tuple[str, ...] = ()


class ReplayGroup(msgspec.Struct, array_like=True):
    """A trained group: its prompt (`int32` ids) and its members with a reward. `until` is the last
    step that may replay it, `prompt_facts` those of its admission, and `drawn` as in
    `GroupFacts`."""

    group: int
    prompt: bytes
    until: int
    members: list[ReplayMember]
    prompt_facts: PromptFacts = PromptFacts()
    drawn: DrawnMembers | None = None

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
        """The facts from which its members' advantages are computed, as in `Group.facts`."""
        parts = [member.parts for member in self.members]
        keys = [turn_keys(member.turns) for member in self.members]
        above = [turns_above(member.turns) for member in self.members]
        return GroupFacts(
            list(self.rewards),
            parts,
            list(self.lengths),
            self.turns,
            keys,
            self.prompt_facts,
            above,
            self.drawn,
        )

    def sequences(self, member: ReplayMember) -> list[TrainingSequence]:
        """Sequences of a member, to be trained again, as in `Group.sequences`."""
        if member.strands:
            strands = sequences(
                member.ids,
                member.behaviour,
                member.spans,
                member.turns,
                member.strands,
                member.errors,
                member.routing,
            )
            return [one.numbered(member.images) for one in strands] if member.images else strands
        return [
            TrainingSequence.single_turn(
                self.prompt,
                member.ids,
                member.behaviour,
                member.spans,
                member.finish,
                member.errors,
                member.routing,
            )
        ]

    @property
    def oldest(self) -> int:
        """The smallest version that sampled a token of the run's own; `until` without any."""
        spans = (span for member in self.members for span in member.spans)
        return min((span.version for span in spans if span.source == "own"), default=self.until)

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
        call it before their tokens are released, which does not change these arrays. Raises
        ImpossibleEvent for a group that no step has taken, with a member that was already trained,
        or that is already kept."""
        if group.id in self.kept:
            raise ImpossibleEvent(f"group {group.id} is already kept")
        if any(
            member.step is not None and member.status is not RolloutStatus.TAKEN
            for member in group.members
        ):
            raise ImpossibleEvent(
                f"group {group.id} was trained before it was kept, at least in part: its tokens "
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
                m.routing,
                m.images,
            )
            for m in group.members
            if isinstance(m.verdict, Scored) and m.step is not None
        ]
        if not members:
            raise ImpossibleEvent(f"group {group.id} was not taken: there is nothing to replay")
        self.kept[group.id] = ReplayGroup(
            group.id, group.prompt, until, members, group.prompt_facts, group.facts.drawn
        )

    def replay(self, step: int, groups: Sequence[int]) -> list[ReplayGroup]:
        """Remove these groups, which `step` trains again. Raises ImpossibleEvent, and changes
        nothing, for a group that is not kept, that is named twice, or whose last step is over."""
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
        """Drop the groups that no step from `version` on may replay."""
        for number in [number for number, kept in self.kept.items() if kept.until < version]:
            del self.kept[number]
