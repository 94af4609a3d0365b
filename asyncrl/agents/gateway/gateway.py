"""The gateway: one call from its prompt to its end. Invariant: whatever ends a call (the model, a
stop string, a client that disconnects, the end of its attempt, its deadline), it is interrupted and
then read to its end, never cut off."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import trio

from asyncrl.agents.gateway.call_images import CallImages
from asyncrl.agents.gateway.call_record import CallRecord
from asyncrl.agents.gateway.dialects.parameters import FORMS, NO_FORM
from asyncrl.agents.gateway.errors import GatewayError, bad
from asyncrl.agents.gateway.formats.every_format import looks_like_a_call
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.generation import Generation
from asyncrl.agents.gateway.inner_call import AnswerPart, CallEnd, ModelCall, text_of
from asyncrl.agents.gateway.model_format import format_of
from asyncrl.agents.gateway.played_session import PlayedSession, ended
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.agents.gateway.prompt_reader import Prompt, PromptReader
from asyncrl.agents.gateway.reading import ReplyReader
from asyncrl.agents.gateway.tools import PlainText, ToolParser
from asyncrl.escape import escaped
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.tasks.text import Tokenizer

logger = logging.getLogger(__name__)

FULL = "episode_full"
"""The code of a call that is refused because the episode has reached its limit."""
_WARNINGS = 64
"""The most parameters without effect that the log names."""
_GRACE_S = 60.0
"""Seconds that an engine may take to react to an interrupt."""


class Gateway:
    """The calls of all agents of one actor, each in a session that an agent plays."""

    def __init__(
        self,
        sessions: PlayedSessions,
        tokenizer: Tokenizer,
        settings: Settings,
        waits: Waits,
        count: Callable[[str], None] = lambda name: None,
        images: CallImages | None = None,
    ) -> None:
        """Renders some calls with the chat template. `count` adds one to a counter; `images` are
        those of calls, for a model that reads them."""
        self.settings, self.waits = settings, waits
        self._sessions, self._tokenizer, self._count = sessions, tokenizer, count
        self.format = format_of(tokenizer)
        self.reader = PromptReader(tokenizer, settings, waits, self.format, images)
        self._images = images
        self._calls = 0
        self._warned = set[str]()

    def warn(self, ignored: Sequence[str]) -> None:
        """Log, once for each parameter, that it has no effect."""
        for name in ignored:
            if name not in self._warned and len(self._warned) < _WARNINGS:
                self._warned.add(name)
                logger.warning(
                    "the parameter %s of agents' calls has no effect: %s "
                    "(agent.strict_parameters refuses it)",
                    escaped(name, 80),
                    NO_FORM
                    if name in FORMS
                    else ("training fixes it, or the gateway does not support it"),
                )

    @property
    def ready(self) -> bool:
        """True if calls are answered."""
        return self._sessions.ready

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Room for one call. Raises GatewayError if there is none."""
        if not self.ready:
            raise GatewayError(
                503,
                "not_ready",
                "too many messages of agents are waiting to be sent; try again",
                retry_s=1,
            )
        if self._calls >= self.settings.calls:
            raise GatewayError(
                429,
                "busy",
                f"{self._calls} calls are already running, which is the limit; try again",
                retry_s=1,
            )
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    async def answer(
        self,
        session: PlayedSession,
        call: ModelCall,
        prompt: Prompt,
        *,
        write: Callable[[AnswerPart], Awaitable[None]],
        gone: Callable[[], Awaitable[None]],
    ) -> CallEnd | None:
        """Sample one answer to a call. `write` gets each readable part as it comes. `gone` returns
        when the client has disconnected: then the call is interrupted, and None is returned. Raises
        GatewayError if there is no answer, or an incomplete one."""
        tokens = self._budget(prompt.ids, call)
        parser: ToolParser = PlainText()
        if call.prompt is None:
            parser = self.format.parser(call.tools, prompt.tail, special=call.special)
        marks = self.format.marks if not isinstance(parser, PlainText) else ()
        record = CallRecord(
            ReplyReader(self._tokenizer, call.stops, parser, special=call.special, marks=marks),
            self._tokenizer,
            self.settings.vocabulary,
            scored=call.scored,
            context=np.array(prompt.ids, np.int32).tobytes(),
        )
        cut: list[Literal["late", "gone"]] = []

        async def watch(generation: Generation) -> None:
            with trio.move_on_after(self.settings.call_s) as scope:
                await gone()
            cut.append("late" if scope.cancelled_caught else "gone")
            generation.abandon()

        deadline_s = self.settings.call_s + _GRACE_S
        try:
            with (
                self.waits.on("tokens", owner=f"session {session.name}", deadline_s=deadline_s),
                session.ask(prompt.ids, tokens, call.stops, call.role) as generation,
            ):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(watch, generation)
                    async for piece in generation:
                        read = record.take(piece)
                        if record.closed and not piece.finish:
                            generation.interrupt(len(record.ids))
                        if read.deltas or read.tokens:
                            await write(read)
                    nursery.cancel_scope.cancel()
        except WaitExpired as error:
            raise GatewayError(
                504, "engine_silent", f"the engine did not end the answer: {error}"
            ) from error
        finally:
            if record.ids:
                context = np.array(prompt.ids, np.int32).tobytes()
                texts, replies = self._texts(prompt, record), list[bytes]()
                if prompt.conversation is not None and record.finish != "interrupted":
                    replies = prompt.conversation.replied(record.deltas)
                session.known.add(context, np.array(record.ids, np.int32).tobytes(), texts, replies)
                if call.prompt is None and record.finish != "interrupted":
                    session.sent.add(record.deltas)
        if "gone" in cut:
            return None
        if record.refused:
            code = FULL if record.finish == "length" else "refused"
            raise GatewayError(422, code, record.refused)
        if record.broken:
            raise GatewayError(
                502, "bad_engine", f"{record.broken}; the run's logs name the engine"
            )
        if record.finish == "interrupted":
            raise self._interrupted(session, "late" in cut)
        finish: Literal["stop", "length", "tool_calls"] = (
            "length" if record.finish == "length" else "tool_calls" if record.called else "stop"
        )
        shorter = call.budget is None or len(record.ids) < call.budget
        session.cut = finish == "length" and shorter
        if call.tools and finish != "length":
            self._count_reply(called=record.called, text=text_of(record.deltas))
        return CallEnd(finish, len(prompt.ids), len(record.ids), record.stop)

    def _count_reply(self, *, called: bool, text: str) -> None:
        """Count a reply to a call with tools, and whether it looks like a tool call that cannot be
        read: then the agent does nothing, and the run would train that (the condition
        `unread_calls`)."""
        self._count("agents_offered_tools")
        if not called and looks_like_a_call(text):
            self._count("agents_unread_calls")

    def _budget(self, ids: list[int], call: ModelCall) -> int:
        """The number of tokens that may be sampled. Raises GatewayError (400) if context and
        budget do not fit, or ids are not the model's."""
        settings, budget = self.settings, call.budget
        room = settings.context_tokens - len(ids)
        if not ids:
            raise bad("the prompt is empty; give at least one token", "prompt")
        sent = isinstance(call.prompt, list)  # else a negative id is a part of an image
        if max(ids) >= settings.vocabulary or (sent and min(ids) < 0):
            raise bad(
                f"the prompt has an id outside the vocabulary of {settings.vocabulary}; use "
                "the model's own tokenizer",
                "prompt",
            )
        if call.capped and budget is not None:
            budget = max(1, min(budget, room))
        if room < (budget or 1):
            raise bad(
                f"{len(ids)} tokens of context and {budget or 1} to sample exceed the model's "
                f"context of {settings.context_tokens}",
                code="context_length_exceeded",
            )
        return budget or room

    def _texts(self, prompt: Prompt, record: CallRecord) -> list[tuple[bytes, int]]:
        """The texts that a later call may start with: the context, with the reply, and with the
        reply without what ended it."""
        if prompt.text is None:
            return []
        known, ids = len(prompt.ids), record.ids
        if self._images is not None and self._images.sampled_one(ids):
            return [(prompt.text, known)]  # no request may name the token
        shorter = ids[:-1] if ids and ids[-1] in self._tokenizer.stop_ids else ids
        replies = {
            len(reply): self._tokenizer.decode(reply, special=True).encode()
            for reply in (ids, shorter)
        }
        return [
            (prompt.text, known),
            *((prompt.text + reply, known + tokens) for tokens, reply in replies.items() if tokens),
        ]

    def _interrupted(self, session: PlayedSession, late: bool) -> GatewayError:
        if late:
            return GatewayError(
                504,
                "too_slow",
                f"the answer was still incomplete after {self.settings.call_s:g} s; lower "
                "max_tokens",
            )
        if session.over:
            return ended(session.name)
        return GatewayError(
            503,
            "interrupted",
            "the engine was interrupted before the answer was complete; try again",
            retry_s=1,
        )
