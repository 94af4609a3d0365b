"""Requests and prompts, parsed from what agents send. Invariant: slow work is done in one thread of
its own, on inputs of bounded size, never in the thread of the event loop or in an engine's decoding
threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
import trio

from asyncrl.agents.gateway.call_images import AttemptImages, CallImages, bare
from asyncrl.agents.gateway.conversation import Conversation, Messages, Render
from asyncrl.agents.gateway.errors import GatewayError, bad
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.inner_call import Dialect, ModelCall
from asyncrl.agents.gateway.known_text import KnownText
from asyncrl.agents.gateway.model_format import ModelFormat
from asyncrl.agents.gateway.other_call import model_of
from asyncrl.agents.gateway.played_session import PlayedSession
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.tasks import TaskError
from asyncrl.tasks.images.fetching import FETCH_S, fetched
from asyncrl.tasks.images.image_source import ImageSource
from asyncrl.tasks.text import Tokenizer

REST = 30
"""After a bad request no other is read for this many times as long as that one took, so that bad
requests leave most of the time to the run."""

FETCHES = 8
"""Images that are fetched at a time."""

_TAIL = 200
"""Characters at the end of a prompt that tell whether it opens a thought."""

_T = TypeVar("_T")


class Prompt(msgspec.Struct, frozen=True):
    """A call's context: its ids, and the text (UTF-8) that they come from; None if ids were sent or
    sampled. An id `-1 - n` is a part of image `n` of the attempt. It has its conversation if
    replies keep their sampled tokens. `tail` is the end of its text."""

    ids: list[int]
    text: bytes | None
    conversation: Conversation | None = None
    tail: str = ""


class PromptReader:
    """Reads one request at a time, each with what its session knows."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        settings: Settings,
        waits: Waits,
        model_format: ModelFormat,
        images: CallImages | None = None,
    ) -> None:
        self._tokenizer, self._settings, self._waits = tokenizer, settings, waits
        self._format, self._images = model_format, images
        self._turn, self._thread = trio.Lock(), trio.CapacityLimiter(1)
        self._fetches = trio.CapacityLimiter(FETCHES)
        self._due = -math.inf  # when the next request is read

    async def call(self, session: PlayedSession, dialect: Dialect, body: bytes) -> ModelCall:
        """The call in a body. Its images are kept, and named by their hashes. Raises
        GatewayError."""

        def read() -> tuple[ModelCall, Sequence[ImageSource]]:
            call = dialect.read(body, self._settings)
            if self._images is None:
                return call, ()
            if named := self._images.named(call.messages):
                return call, named
            return keep(call, {}), ()

        def keep(call: ModelCall, fetched: Mapping[str, bytes]) -> ModelCall:
            assert self._images is not None
            messages = self._images.kept(call.messages, session.images, fetched)
            return msgspec.structs.replace(call, messages=messages)

        call, named = await self._in_turn(read)
        if not named:
            return call
        found = await self._fetched(named)
        return await self._in_turn(partial(keep, call, found))

    async def _fetched(self, named: Sequence[ImageSource]) -> dict[str, bytes]:
        """The bytes of a call's images, one after another. Raises GatewayError (400)."""
        found = dict[str, bytes]()
        for source in named:
            try:
                with self._waits.on("an image", owner="its host", deadline_s=4 * FETCH_S):
                    found[source.url] = await trio.to_thread.run_sync(
                        partial(fetched, source.url, source.hosts),
                        limiter=self._fetches,
                        abandon_on_cancel=True,
                    )
            except (LookupError, WaitExpired) as error:
                raise bad(str(error), "messages", "invalid_image") from error
        return found

    async def model(self, body: bytes) -> str:
        """The model that a call names; empty if it names none. Raises GatewayError (503)."""
        return await self._in_turn(partial(model_of, body))

    async def prompt(self, session: PlayedSession, call: ModelCall) -> Prompt:
        """The context of a call. Raises GatewayError."""
        if isinstance(call.prompt, str):
            return await self._prompt(session.known, call.prompt, "prompt")
        if call.prompt is not None:
            return Prompt(call.prompt, None)

        def render(chat: Messages) -> str:
            whole = [
                bare(self._format.shaped(self._restored(session, message))) for message in chat
            ]
            try:
                text = self._tokenizer.render(whole, call.tools)
            except TaskError as error:
                raise bad(str(error), "messages") from error
            return text if self._images is None else self._images.shown(text, chat)

        messages = call.messages
        if self._settings.as_sampled:
            conversation = await self._in_turn(lambda: Conversation(messages, call.tools))
            if (found := await self._as_sampled(session, conversation, render)) is not None:
                ids, rest = found
                return Prompt(ids, None, conversation, rest[-_TAIL:])
        else:
            conversation = None
        text = await self._in_turn(lambda: render(messages))
        prompt = await self._prompt(session.known, text, "messages", session.images)
        return msgspec.structs.replace(prompt, conversation=conversation, tail=text[-_TAIL:])

    def _restored(self, session: PlayedSession, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A reply that came back, with what the client left out of it."""
        if message["role"] != "assistant" or (sent := session.sent.of(message)) is None:
            return message
        whole = dict(message)
        if self._format.text_arguments and sent.arguments:
            whole["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": text}}
                for call, text in zip(message["tool_calls"], sent.arguments, strict=True)
            ]
        if sent.thoughts and not message.get("reasoning_content"):
            if self._format.thoughts_field:
                whole["reasoning_content"] = sent.thoughts
            else:
                whole["content"] = sent.raw + whole["content"]
        return whole

    async def _as_sampled(
        self, session: PlayedSession, conversation: Conversation, render: Render
    ) -> tuple[list[int], str] | None:
        """The ids of a conversation with its last known reply as it was sampled, and the text after
        it; None if no reply is known, or the template does not show where the reply ends."""

        def rest(at: int) -> str | None:
            try:
                return conversation.rest(at, render)
            except GatewayError:  # a template may refuse the mark in the reply's place
                return None

        for at, digest in conversation.replies():
            if (sampled := session.known.replied(digest)) is not None:
                text = await self._in_turn(partial(rest, at))
                if text is None:
                    return None
                return await self._behind(sampled, text, session.images), text
        return None

    async def _prompt(
        self, known: KnownText, text: str, param: str, images: AttemptImages | None = None
    ) -> Prompt:
        """A text as the model will see it. The part that the session has seen or sampled keeps its
        tokens."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise bad(
                "the text has half of a surrogate pair, which is not a character", param
            ) from error
        length, known_ids = known.longest(data)
        ids: list[int] = np.frombuffer(known_ids, np.int32).tolist()
        start, most = param == "prompt" and not ids, self._settings.context_tokens - len(ids)

        def read() -> list[int]:
            text = data[length:].decode()
            rest = self._within(text, most, images, start=start)
            if rest is None:
                raise self._too_long(f"a text of {len(text)} characters exceeds", param)
            return rest

        return Prompt(ids + await self._in_turn(read), data)

    def _within(
        self, text: str, most: int, images: AttemptImages | None, *, start: bool = False
    ) -> list[int] | None:
        """The ids of a text (a shown text if there may be `images`); None if there are more than
        `most`. Raises GatewayError."""
        if self._images is None or images is None:
            return self._tokenizer.ids_within(text, most, start=start)
        plain, names = self._images.plain(text)
        ids = self._tokenizer.ids_within(plain, most, start=start)
        if ids is None or not names:
            return ids
        numbered = self._images.numbered(ids, names, images)
        return None if len(numbered) > most else numbered

    async def _behind(
        self, sampled: bytes, rest: str, images: AttemptImages | None = None
    ) -> list[int]:
        """The ids of a conversation: those up to a reply (`int32`), and those of the text after it,
        which may begin with the end of the reply."""
        ids: list[int] = np.frombuffer(sampled, np.int32).tolist()
        if ids[-1] in self._tokenizer.stop_ids:
            rest = rest.removeprefix(self._tokenizer.decode(ids[-1:], special=True))
        most = self._settings.context_tokens - len(ids)

        def read() -> list[int]:
            rest_ids = self._within(rest, most, images) if most >= 0 else None
            if rest_ids is None:
                raise self._too_long("the conversation exceeds", "messages")
            return rest_ids

        return ids + await self._in_turn(read)

    def _too_long(self, what: str, param: str) -> GatewayError:
        return bad(
            f"{what} the model's context of {self._settings.context_tokens} tokens "
            "(engine.context_tokens)",
            param,
            "context_length_exceeded",
        )

    async def _in_turn(self, work: Callable[[], _T]) -> _T:
        try:
            with self._waits.on(
                "a turn to be read", owner="an agent", deadline_s=self._settings.body_s
            ):
                async with self._turn:
                    await trio.sleep_until(self._due)
                    begun = trio.current_time()
                    try:
                        return await trio.to_thread.run_sync(
                            partial(_refusing, work), limiter=self._thread
                        )
                    except GatewayError:
                        now = trio.current_time()
                        self._due = now + REST * (now - begun)
                        raise
        except WaitExpired as error:
            raise GatewayError(
                503,
                "busy",
                f"other requests were being read for {self._settings.body_s:g} s; try again",
                retry_s=1,
            ) from error


def _refusing(work: Callable[[], _T]) -> _T:
    """The result of `work`. Raises GatewayError, also if the tokenizer fails on a text."""
    try:
        return work()
    except TaskError as error:
        raise bad(str(error)) from error
