"""A session that an agent plays for the coordinator: one attempt at an episode, over a link.

Invariant: no message is sent for an attempt that is over. Its calls are numbered from 0 in the
order of asking. Each answered call has at most one reward, and so has the whole episode.

    a call         ──▶  Ask, then Enough when the agent needs no more of its answer
    its answer     ◀──  Reply, Reply, …
    a noted result ──▶  Note          a reward ──▶ GiveReward     a failed call ──▶ GiveFailure

If a call's client is gone, its agent may have died, and the next attempt needs the whole answer. So
its Enough is sent with the agent's next message, or when the agent ends well.

Unread replies wait here. Their number is bounded by the tokens of the running calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import trio

from asyncrl.agents.gateway.call_images import AttemptImages
from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.agents.gateway.game_table import Table
from asyncrl.agents.gateway.generation import GeneratedPiece, Generation
from asyncrl.agents.gateway.known_text import KnownText
from asyncrl.agents.gateway.sent_replies import SentReplies
from asyncrl.experience.image_marks import numbered_alone
from asyncrl.messages import (
    Ask,
    Enough,
    Finish,
    GiveFailure,
    GiveReward,
    Message,
    Note,
    Play,
    Played,
    Reply,
)

NOTES, NOTES_BYTES = 4096, 2**24
"""The most noted results of an episode, and the most bytes of all of them."""

Say = Callable[..., None]
"""Sends a message and its buffers, in order, some time later."""


class _LinkAnswer:
    """The pieces of one answer as they arrive."""

    def __init__(self, enough: Callable[[int], None], gone: Callable[[int], None]) -> None:
        self._enough, self._gone = enough, gone
        self._send, self._receive = trio.open_memory_channel[GeneratedPiece](math.inf)
        self._ended = False
        self.tokens = 0
        """Tokens that were read."""

    def __aiter__(self) -> _LinkAnswer:
        return self

    async def __anext__(self) -> GeneratedPiece:
        try:
            piece = await self._receive.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        self.tokens += len(piece.ids)
        return piece

    def interrupt(self, needed: int) -> None:
        if not self._ended:
            self._enough(needed)
            self.put(_piece("interrupted"))

    def abandon(self) -> None:
        if not self._ended:
            self._gone(self.tokens)
            self.put(_piece("interrupted"))

    def put(self, piece: GeneratedPiece) -> None:
        """Add a piece. Pieces after the last one are ignored."""
        if self._ended:
            return
        self._send.send_nowait(piece)
        if piece.finish:
            self._ended = True
            self._send.close()


class PlayedSession:
    """The attempt of `play`. `say` sends to the coordinator; `paused` stops the agent's clock in
    its block, while a call is answered; `heard` is called for each of the agent's requests."""

    def __init__(
        self,
        play: Play,
        say: Say,
        paused: Callable[[], AbstractContextManager[None]],
        heard: Callable[[], None],
    ) -> None:
        self.play, self.name, self.heard = play, f"r{play.rollout}-{play.attempt}", heard
        self._say_it, self._paused = say, paused
        self._answers: dict[int, _LinkAnswer] = {}
        self._calls = 0
        self._answered: set[int] = set()
        self._notes = dict(play.notes)
        self._others: dict[str, set[int]] = {}  # numbers of equal calls of other models
        self._rewarded: set[int | None] = set()
        self._failed: set[int] = set()
        self._gone: list[Enough] = []
        self.table: Table | None = None
        """The seats of the other policies of its game."""
        self.known = KnownText()
        """Text that its model has seen or sampled."""
        self.images = AttemptImages()
        """Images that its model has seen, by their numbers in ids."""
        self.messages: list[dict[str, Any]] = []
        """The conversation that its agent begins with."""
        self.sent = SentReplies()
        """Replies that were sent to its client."""
        self.full = False
        """True if a call was refused because the episode has reached its limit."""
        self.cut = False
        """True if the last answer was cut before the length that its client asked for."""
        self.over = False
        """True if no more messages may be sent for it."""
        self.finish: Finish = "stop"
        """The end of the last answer."""

    @property
    def rewarded(self) -> bool:
        """True if the whole has its reward."""
        return None in self._rewarded

    @contextmanager
    def ask(
        self, ids: Sequence[int], max_new_tokens: int, stops: Sequence[str], role: str = ""
    ) -> Iterator[Generation]:
        """Ask the model for at most `max_new_tokens` (at least 1) after `ids`, in a `role`. The
        caller interrupts the answer at one of the texts `stops`. Leaving the block ends it, and its
        remaining tokens are lost. Raises GatewayError if the attempt is over."""
        if self.over:
            raise ended(self.name)
        number, self._calls = self._calls, self._calls + 1
        ids_of = (self.play.rollout, self.play.attempt, number)

        def enough(needed: int) -> None:
            self.finish = "stop"  # the agent has what it needs
            self._say(Enough(*ids_of, needed))

        def gone(tokens: int) -> None:
            self._gone.append(Enough(*ids_of, tokens))

        answer = self._answers[number] = _LinkAnswer(enough, gone)
        context, images = numbered_alone(np.array(ids, np.int32).tobytes(), self.images.table)
        self._say(Ask(*ids_of, max_new_tokens, list(stops), role, images), context)
        try:
            with self._paused():
                yield answer
        finally:
            answer.abandon()
            del self._answers[number]

    @property
    def answered(self) -> int:
        """Number of calls that were answered."""
        return len(self._answered)

    def take(self, reply: Reply, ids: bytes | memoryview, behaviour: bytes | memoryview) -> None:
        """Give a reply to its call. A reply to a call that has ended is ignored."""
        if (answer := self._answers.get(reply.number)) is None:
            return
        if reply.refused:
            answer.put(_piece(reply.finish or "interrupted", reply.refused))
            return
        self._answered.add(reply.number)
        self.finish = reply.finish or self.finish
        answer.put(
            GeneratedPiece(
                np.frombuffer(bytes(ids), np.int32),
                np.frombuffer(bytes(behaviour), np.float32),
                reply.version,
                reply.finish,
            )
        )

    def noted(self, name: str) -> bytes | None:
        """The JSON that was noted under this name."""
        return self._notes.get(name)

    def note(self, name: str, value: bytes) -> bytes:
        """Note JSON under a name, for later attempts too. Returns what is noted: the first
        value. Raises GatewayError (422) if there is no room for it."""
        if name not in self._notes:
            if not self.has_room(value):
                raise GatewayError(
                    422,
                    "too_many_notes",
                    f"an episode may note {NOTES} results of {NOTES_BYTES} bytes in all",
                )
            self._notes[name] = value
            self._say(Note(self.play.rollout, self.play.attempt, name, value))
        return self._notes[name]

    def has_room(self, value: bytes) -> bool:
        """True if one more result of these bytes can be noted."""
        held = sum(map(len, self._notes.values())) + len(value)
        return len(self._notes) < NOTES and held <= NOTES_BYTES

    @contextmanager
    def other_call(self, asked: str) -> Iterator[int]:
        """The number of a call of another model, from 0 among the equal ones (`asked`) of this
        attempt. If it fails in the block, the next one gets its number. Raises GatewayError (422)
        for too many."""
        equal = self._others.setdefault(asked, set())
        if sum(map(len, self._others.values())) >= NOTES:
            raise GatewayError(
                422, "too_many_calls", f"an episode may call other models {NOTES} times"
            )
        number = next(number for number in range(NOTES) if number not in equal)
        equal.add(number)
        try:
            yield number
        except BaseException:
            equal.discard(number)
            raise

    def reward(self, reward: float, turn: int | None, key: str = "") -> None:
        """Give a reward, and a key, to an answered turn (negative numbers count from the last one),
        or, with None, to the whole. Raises GatewayError (409 if there is one already, 422 if there
        is no such turn)."""
        number = None
        if turn is not None:
            number = self._turn(turn)
        if number in self._rewarded or self.rewarded:
            whose = "the episode" if self.rewarded else f"turn {turn}"
            raise GatewayError(409, "rewarded", f"{whose} already has its reward")
        self._rewarded.add(number)
        self._say(GiveReward(self.play.rollout, self.play.attempt, number, reward, key))

    def fail(self, tool: str, turn: int) -> None:
        """Report that a turn, counted as for a reward, was a failed call of `tool`. Raises
        GatewayError (409 if that was reported already, or the whole has its reward, 422 if there is
        no such turn)."""
        number = self._turn(turn)
        if number in self._failed or self.rewarded:
            reason = (
                "the episode already has its reward"
                if self.rewarded
                else (f"turn {turn} is already reported as failed")
            )
            raise GatewayError(409, "failed", f"{reason} already")
        self._failed.add(number)
        self._say(GiveFailure(self.play.rollout, self.play.attempt, number, tool))

    def _turn(self, turn: int) -> int:
        """The number of the call of this turn. Raises GatewayError (422) if there is none."""
        turns = sorted(self._answered)
        if not -len(turns) <= turn < len(turns):
            raise GatewayError(
                422,
                "no_turn",
                f"there is no turn {turn}: this episode has {len(turns)} answered calls",
                param="turn",
            )
        return turns[turn]

    def paused(self) -> AbstractContextManager[None]:
        """Stop the agent's clock in the block."""
        return self._paused()

    def end(self) -> None:
        """End the attempt: send no more messages, and end the unfinished answers."""
        self.over = True
        for answer in self._answers.values():
            answer.abandon()

    def played(self) -> None:
        """Report that the agent ended by itself, well or because the episode reached its limit."""
        finish: Finish = "length" if self.full else self.finish
        self._say(Played(self.play.rollout, self.play.attempt, finish))

    def _say(self, message: Message, *buffers: bytes) -> None:
        if not self.over:
            for enough in self._gone:
                self._say_it(enough)
            self._gone.clear()
            self._say_it(message, *buffers)


def ended(name: str) -> GatewayError:
    """The error of a request for a session that no agent plays."""
    return GatewayError(
        404, "unknown_session", f"no episode is played as session {name}; its attempt may be over"
    )


def _piece(finish: Finish, refused: str = "") -> GeneratedPiece:
    return GeneratedPiece(np.empty(0, np.int32), np.empty(0, np.float32), 0, finish, refused)
