"""Rollouts and groups. Invariant 4 (parallel arrays): `len(ids) == len(behaviour)` and spans tile
`[0, tokens)` after every `extend`.

Prompts come in through `Group.of` alone, and tokens through `Rollout.extend` alone; each checks
everything before it changes anything.
"""

from __future__ import annotations

import enum
from typing import Self

import msgspec

from asyncrl.experience.events import Admitted
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.ipc.messages import Finish, NoVerdict, Scored, Span, Split, Verdict

TOKEN_BYTES = 8
"""Bytes of a response token: an `int32` id and a `float32` behaviour log-probability."""


class ImpossibleEvent(Exception):
    """An event cannot have happened; the state is what it was before."""


class RolloutStatus(enum.Enum):
    """Stages in the life of a rollout: waiting → leased (→ waiting …) → sealed → judged → taken →
    trained or discarded. It may be buried before it is sealed, and discarded with its group at any
    stage. It is judged again where a crash undid its step."""

    WAITING = "waiting"
    LEASED = "leased"
    SEALED = "sealed"
    JUDGED = "judged"
    TAKEN = "taken"
    TRAINED = "trained"
    DISCARDED = "discarded"
    BURIED = "buried"


FINISHED = frozenset(
    {
        RolloutStatus.JUDGED,
        RolloutStatus.TAKEN,
        RolloutStatus.TRAINED,
        RolloutStatus.DISCARDED,
        RolloutStatus.BURIED,
    }
)
"""Stages at which nothing more is waited for: such a member lets its group complete."""

ENDED = frozenset({RolloutStatus.TRAINED, RolloutStatus.DISCARDED, RolloutStatus.BURIED})
"""The ends of a rollout's life. An ended rollout holds no tokens."""


class Rollout(msgspec.Struct):
    """One response as far as it is known.

    `ids` (`int32`) and `behaviour` (`float32`, log-probabilities) are parallel and little-endian.
    Copy them where they are kept, because a buffer taken of them keeps the rollout from growing.
    `attempt` counts leases, `failures` those that failed; `holder` is the actor that has its lease,
    empty while nobody does. `sealed` is its place in the order of sealing, from 1; 0 before.
    `judged` is the same for verdicts. `step` is the one that has taken it, or that has to take it
    again after a crash; None before.
    """

    id: int
    group: int
    max_new_tokens: int
    status: RolloutStatus = RolloutStatus.WAITING
    attempt: int = 0
    failures: int = 0
    holder: str = ""
    ids: bytearray = msgspec.field(default_factory=bytearray)
    behaviour: bytearray = msgspec.field(default_factory=bytearray)
    spans: list[Span] = msgspec.field(default_factory=list)
    finish: Finish = ""
    sealed: int = 0
    judged: int = 0
    verdict: Verdict | None = None
    step: int | None = None

    @property
    def oldest(self) -> int:
        """The smallest version that sampled a token, 0 where there is none."""
        return min((span.version for span in self.spans), default=0)

    @property
    def tokens(self) -> int:
        """Response tokens held."""
        return len(self.ids) >> 2

    @property
    def remaining(self) -> int:
        """Response tokens that may still be sampled."""
        return self.max_new_tokens - (len(self.ids) >> 2)

    @property
    def truncated(self) -> bool:
        """True if its response was cut at its budget."""
        return self.finish == "length"

    @property
    def resumable(self) -> bool:
        """True if it was taken back with its tokens, and waits for another lease."""
        return self.status is RolloutStatus.WAITING and self.attempt > 0

    def extend(self, version: int, start: int, ids: bytes, behaviour: bytes) -> int:
        """Append tokens sampled under `version`, of which the first is response token `start`.
        Returns their number.

        Raises ImpossibleEvent where the arrays differ in length or hold no whole tokens, `start` is
        not the next token, the budget is exceeded, or the version is negative.

        Example: a rollout with the span (3, 0, 4) that gets two tokens of version 3 has the span
        (3, 0, 6); with one more of version 4 it has (3, 0, 6) and (4, 6, 7).
        """
        size = len(ids)
        if size != len(behaviour):
            raise ImpossibleEvent(
                f"rollout {self.id} got {size} bytes of ids and {len(behaviour)} of "
                "log-probabilities: they must be parallel"
            )
        if not size or size & 3:
            raise ImpossibleEvent(
                f"rollout {self.id} got {size} bytes of ids, which is not a positive number of "
                "int32"
            )
        held = len(self.ids) >> 2
        if start != held:
            raise ImpossibleEvent(
                f"rollout {self.id} holds {held} tokens, and was extended from token {start}"
            )
        end = held + (size >> 2)
        if end > self.max_new_tokens:
            raise ImpossibleEvent(
                f"rollout {self.id} may have {self.max_new_tokens} tokens, and was extended to "
                f"{end}"
            )
        if version < 0:
            raise ImpossibleEvent(
                f"rollout {self.id} got tokens of version {version}, which does not exist"
            )
        self.ids += ids
        self.behaviour += behaviour
        spans = self.spans
        if spans and spans[-1].version == version:
            spans[-1] = Span(version, spans[-1].start, end)
        else:
            spans.append(Span(version, held, end))
        return end - held

    def release(self) -> int:
        """Forget the tokens, and return their number. The arrays are replaced, so buffers taken of
        them stay valid."""
        tokens = self.tokens
        self.ids, self.behaviour, self.spans = bytearray(), bytearray(), []
        return tokens


class Group(msgspec.Struct):
    """One prompt and its rollouts.

    `prompt` is `int32` ids; `prompt_index` its place in its split of the task; `version` pins the
    weights (evaluation) or is None; `key` is its first rollout's, and `sampled` is
    of held-out ones (see `Admitted`). `ordinal` is the number of groups of its split admitted
    before. Taken as it was admitted: `prior`, the mean of
    the rewards of its prompt's earlier visits and what they count for (`History.prior`), and
    `admitted_version`, the version last published, 0 before the first.
    """

    id: int
    split: Split
    prompt_index: int
    prompt: bytes
    version: int | None
    members: tuple[Rollout, ...]
    key: int = 0
    ordinal: int = 0
    prior: tuple[float, float] = (0.0, 0.0)
    admitted_version: int = 0
    sampled: bool = False

    @classmethod
    def of(
        cls, event: Admitted, ordinal: int, prior: tuple[float, float], admitted_version: int
    ) -> Self:
        """The group that was admitted, all of its rollouts waiting. Raises ImpossibleEvent for one
        without rollouts, prompt or budget, or with a negative `prompt_index`."""
        if event.size < 1 or event.max_new_tokens < 1 or event.prompt_index < 0:
            raise ImpossibleEvent(
                f"group {event.group} needs a rollout, a token to sample and a prompt: "
                f"{event.size=} {event.max_new_tokens=} {event.prompt_index=}"
            )
        if not event.prompt or len(event.prompt) & 3:
            raise ImpossibleEvent(
                f"group {event.group} has a prompt of {len(event.prompt)} bytes, which is not a "
                "positive number of int32"
            )
        members = tuple(
            Rollout(event.first + i, event.group, event.max_new_tokens) for i in range(event.size)
        )
        return cls(
            event.group,
            event.split,
            event.prompt_index,
            event.prompt,
            event.version,
            members,
            event.key,
            ordinal,
            prior,
            admitted_version,
            event.sampled,
        )

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) >> 2

    @property
    def complete(self) -> bool:
        """True if every member is judged or buried, or was."""
        return all(member.status in FINISHED for member in self.members)

    @property
    def ended(self) -> bool:
        """True if every member is trained, discarded or buried."""
        return all(member.status in ENDED for member in self.members)

    @property
    def begun(self) -> bool:
        """True if a step has taken any member, or has to take it again."""
        return any(member.step is not None for member in self.members)

    @property
    def scored(self) -> list[Rollout]:
        """The members with a reward, in order: what a step takes."""
        return [member for member in self.members if isinstance(member.verdict, Scored)]

    @property
    def unscored(self) -> list[Rollout]:
        """The members whose verifier gave no reward and that have not ended, in order."""
        return [
            member
            for member in self.members
            if isinstance(member.verdict, NoVerdict) and member.status not in ENDED
        ]

    @property
    def rewards(self) -> list[float]:
        """The rewards there are, in the order of `scored`. Their number is what `k_min` asks
        for."""
        return [
            member.verdict.reward for member in self.members if isinstance(member.verdict, Scored)
        ]

    @property
    def oldest(self) -> int:
        """The smallest version that sampled a token of a scored member, 0 where there is none."""
        return min((span.version for member in self.scored for span in member.spans), default=0)

    @property
    def parts(self) -> list[list[float]]:
        """The parts of each reward, in the order of `scored`; empty lists where verifiers give one
        reward."""
        return [
            member.verdict.parts for member in self.members if isinstance(member.verdict, Scored)
        ]

    @property
    def lengths(self) -> list[int]:
        """The sampled tokens of each member with a reward, in the order of `scored`."""
        return [member.tokens for member in self.scored]

    def sequence(self, member: Rollout) -> TrainingSequence:
        """The prompt and what there is of a member's response, to be trained."""
        errors = member.verdict.errors if isinstance(member.verdict, Scored) else ()
        return TrainingSequence.single_turn(
            self.prompt, member.ids, member.behaviour, member.spans, member.finish, errors
        )

    def comparable(self, verdict: Scored) -> bool:
        """True if a verdict has as many parts as each of those that there are."""
        return all(len(parts) == len(verdict.parts) for parts in self.parts)

    def others(self, rollout: Rollout) -> list[float]:
        """The rewards of the members other than this one, the first judged first, whatever became
        of them since."""
        others = (member for member in self.members if member is not rollout)
        scored = [(m.judged, m.verdict.reward) for m in others if isinstance(m.verdict, Scored)]
        return [reward for _, reward in sorted(scored)]
