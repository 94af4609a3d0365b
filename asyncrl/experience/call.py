"""Calls, which are leased to engines. Invariant 4 (parallel arrays): `len(ids) == len(behaviour)`
and spans tile `[0, tokens)` after every `extend`.

A call samples one response to one context. A rollout of one turn is its own only call, and an
agent's rollout has one for each call that the agent made to the model (`episode.py`). Rollouts and
calls are numbered together, so a lease names only a number.

Tokens come in through `Call.extend` alone, which checks everything before it changes anything.
"""

from __future__ import annotations

import enum

import msgspec

from asyncrl.experience.sequence import UNKNOWN, with_routing
from asyncrl.messages import Finish, Span

TOKEN_BYTES = 8
"""Bytes of a response token: an `int32` id and a `float32` behaviour log-probability."""


class ImpossibleEvent(Exception):
    """Raised for an event that cannot have happened; the state does not change."""


class RolloutStatus(enum.Enum):
    """Stages in the life of a rollout: waiting → leased (→ waiting …) → sealed → judged → taken →
    trained or discarded. It may be buried before it is sealed, and discarded with its group at any
    stage. It is judged again where a crash undid its step.

    A rollout that an agent plays is `begun` instead of leased, and the agent's calls go waiting →
    leased (→ waiting …) → answered. A call of an ended attempt
    is `unclaimed` until the next attempt makes it again."""

    WAITING = "waiting"
    LEASED = "leased"
    BEGUN = "begun"
    UNCLAIMED = "unclaimed"
    ANSWERED = "answered"
    SEALED = "sealed"
    JUDGED = "judged"
    TAKEN = "taken"
    TRAINED = "trained"
    DISCARDED = "discarded"
    BURIED = "buried"


class Call(msgspec.Struct):
    """One response, as far as it is generated.

    `ids` (`int32`) and `behaviour` (`float32`, log-probabilities) are parallel and little-endian.
    Copy them before keeping them, because a buffer of them blocks the call from growing. `attempt`
    counts leases, `failures` those that failed; `holder` is the actor that has its lease, empty
    without a lease. `finish` is the reason why it is complete; empty before. `routing` are the
    experts that each token was predicted with (`Chunk.routing`), as many bytes for each, 255 where
    unknown; empty where none are known.
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
    routing: bytearray = msgspec.field(default_factory=bytearray)

    @property
    def tokens(self) -> int:
        """Response tokens held."""
        return len(self.ids) >> 2

    @property
    def remaining(self) -> int:
        """Response tokens that may still be sampled."""
        return self.max_new_tokens - (len(self.ids) >> 2)

    @property
    def resumable(self) -> bool:
        """True if it was requeued with its tokens, and waits for another lease."""
        return self.status is RolloutStatus.WAITING and self.attempt > 0

    def extend(
        self, version: int, start: int, ids: bytes, behaviour: bytes, routing: bytes = b""
    ) -> int:
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
        if routing or self.routing:
            try:
                self.routing = with_routing(self.routing, held, routing, end - held)
            except ValueError as error:
                raise ImpossibleEvent(f"rollout {self.id}: {error}") from error
        self.ids += ids
        self.behaviour += behaviour
        spans = self.spans
        if spans and spans[-1].version == version:
            spans[-1] = Span(version, spans[-1].start, end)
        else:
            spans.append(Span(version, held, end))
        return end - held

    def route(self, start: int, tokens: int, routing: bytes) -> None:
        """Set the experts of `tokens` tokens from token `start` on. Raises ImpossibleEvent where it
        does not hold these tokens, or has other numbers of bytes for them.

        Example: a rollout of 3 tokens without routing that gets b"ab" for 2 tokens from token 1 on
        has b"\xffab".
        """
        if not 0 <= start < start + tokens <= self.tokens:
            raise ImpossibleEvent(
                f"rollout {self.id} holds {self.tokens} tokens, and got the experts of {tokens} "
                f"from token {start} on"
            )
        width, rest = divmod(len(routing), tokens)
        if rest or not width or len(self.routing) not in (0, width * self.tokens):
            raise ImpossibleEvent(
                f"rollout {self.id} holds {self.tokens} tokens with {len(self.routing)} bytes of "
                f"routing, and got {len(routing)} for {tokens} of them"
            )
        if not self.routing:
            self.routing = bytearray(UNKNOWN * (width * self.tokens))
        self.routing[width * start : width * (start + tokens)] = routing

    def cut(self, tokens: int) -> int:
        """Drop all but the first `tokens` response tokens, and return the number of the others. The
        arrays are replaced, so buffers taken of them stay valid."""
        forgotten = len(self.ids) // 4 - tokens
        if self.routing:
            self.routing = self.routing[: len(self.routing) // self.tokens * tokens]
        self.ids, self.behaviour = self.ids[: 4 * tokens], self.behaviour[: 4 * tokens]
        self.spans = [
            Span(span.version, span.start, min(span.end, tokens))
            for span in self.spans
            if span.start < tokens
        ]
        return forgotten

    def release(self) -> int:
        """Drop the tokens, and return their number. The arrays are replaced, so buffers taken of
        them stay valid."""
        tokens = self.tokens
        self.ids, self.behaviour, self.spans = bytearray(), bytearray(), []
        self.routing = bytearray()
        return tokens
