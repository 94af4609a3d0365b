"""Requests and prompts, parsed from what agents send. Invariant: slow work is done in one thread
that does nothing else, on inputs of bounded size, and never in the thread of the event loop or in
those in which an engine decodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
import trio

from asyncrl.agents.gateway import api_requests
from asyncrl.agents.gateway.conversation import Conversation, Messages, Render
from asyncrl.agents.gateway.errors import GatewayError, bad
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.known_text import KnownText
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.tasks import TaskError
from asyncrl.tasks.text import Tokenizer

REST = 30
"""After a bad request, no other is read for this many times as long as that one took, so that
clients that send bad requests leave most of the time to the run."""

_T = TypeVar("_T")


class Prompt(msgspec.Struct, frozen=True):
    """A call's context: its ids, and the text (UTF-8) that it was made of; None if ids were
    sent, or sampled. Its conversation, if replies keep their sampled tokens."""

    ids: list[int]
    text: bytes | None
    conversation: Conversation | None = None


class PromptReader:
    """Reads one request at a time, each with what its session knows."""

    def __init__(self, tokenizer: Tokenizer, settings: Settings, waits: Waits) -> None:
        self._tokenizer, self._settings, self._waits = tokenizer, settings, waits
        self._turn, self._thread = trio.Lock(), trio.CapacityLimiter(1)
        self._due = -math.inf  # when the next request is read

    async def chat(self, known: KnownText, body: bytes) -> tuple[api_requests.ChatRequest, Prompt]:
        """The request in a body of `/v1/chat/completions`. Raises GatewayError."""

        def read() -> tuple[api_requests.ChatRequest, list[dict[str, Any]]]:
            asked = api_requests.parse(body, api_requests.ChatRequest, self._settings.items)
            self._served(asked)
            api_requests.tools(asked)
            return asked, api_requests.messages(asked, self._settings.items)

        asked, messages = await self._in_turn(read)

        def render(chat: Messages) -> str:
            try:
                return self._tokenizer.render(chat, asked.offered)
            except TaskError as error:
                raise bad(str(error), "messages") from error

        if self._settings.as_sampled:
            conversation = await self._in_turn(lambda: Conversation(messages, asked.offered))
            if (ids := await self._as_sampled(known, conversation, render)) is not None:
                return asked, Prompt(ids, None, conversation)
        else:
            conversation = None
        text = await self._in_turn(lambda: render(messages))
        prompt = await self._prompt(known, text, "messages")
        return asked, msgspec.structs.replace(prompt, conversation=conversation)

    async def _as_sampled(
        self, known: KnownText, conversation: Conversation, render: Render
    ) -> list[int] | None:
        """The ids of a conversation with its last known reply as it was sampled; None if no reply
        is known, or the template does not show where the reply ends."""

        def rest(at: int) -> str | None:
            try:
                return conversation.rest(at, render)
            except GatewayError:  # a template may refuse the mark in the reply's place
                return None

        for at, digest in conversation.replies():
            if (sampled := known.replied(digest)) is not None:
                text = await self._in_turn(partial(rest, at))
                return None if text is None else await self._behind(sampled, text)
        return None

    async def text(self, known: KnownText, body: bytes) -> tuple[api_requests.TextRequest, Prompt]:
        """The request in a body of `/v1/completions`. Raises GatewayError."""

        def read() -> api_requests.TextRequest:
            asked = api_requests.parse(body, api_requests.TextRequest, self._settings.items)
            self._served(asked)
            return asked

        asked = await self._in_turn(read)
        match asked.prompt:
            case str(text) | [str(text)]:
                return asked, await self._prompt(known, text, "prompt")
            case several:
                ids = [token for token in several if isinstance(token, int)]
                if len(ids) < len(several):
                    raise bad("prompt must be one text, or the ids of one", "prompt")
                return asked, Prompt(ids, None)

    async def _prompt(self, known: KnownText, text: str, param: str) -> Prompt:
        """A text as the model will see it. What the session has seen or sampled of it keeps its
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
            rest = self._tokenizer.ids_within(data[length:].decode(), most, start=start)
            if rest is None:
                raise self._too_long(f"a text of {len(text)} characters exceeds", param)
            return rest

        return Prompt(ids + await self._in_turn(read), data)

    async def _behind(self, sampled: bytes, rest: str) -> list[int]:
        """The ids of a conversation: those up to a reply (`int32`), and those of the text behind
        it, which may begin with the end of the reply."""
        ids: list[int] = np.frombuffer(sampled, np.int32).tolist()
        if ids[-1] in self._tokenizer.stop_ids:
            rest = rest.removeprefix(self._tokenizer.decode(ids[-1:], special=True))
        most = self._settings.context_tokens - len(ids)

        def read() -> list[int]:
            rest_ids = self._tokenizer.ids_within(rest, most) if most >= 0 else None
            if rest_ids is None:
                raise self._too_long("the conversation exceeds", "messages")
            return rest_ids

        return ids + await self._in_turn(read)

    def _too_long(self, what: str, param: str) -> GatewayError:
        return bad(
            f"{what} the model's context of {self._settings.context_tokens} tokens",
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

    def _served(self, asked: api_requests.CallRequest) -> None:
        if asked.model != self._settings.model:
            raise GatewayError(
                404,
                "model_not_found",
                f"there is no model {asked.model!r}; ask for {self._settings.model!r}",
                param="model",
            )


def _refusing(work: Callable[[], _T]) -> _T:
    """The result of `work`. Raises GatewayError, also where the tokenizer fails at a text."""
    try:
        return work()
    except TaskError as error:
        raise bad(str(error)) from error
