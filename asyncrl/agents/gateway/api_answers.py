"""Answers to agents, as OpenAI's JSON. Invariant: the parts of a stream, joined, are the answer
that is not streamed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.agents.gateway.tools import Delta, ToolCall


class Token(msgspec.Struct, frozen=True):
    """A reported token: its own text, and its log-probability."""

    text: str
    behaviour: float


class AnswerPart(msgspec.Struct):
    """A part of an answer: the text and calls that became readable, and the tokens that were
    sampled meanwhile."""

    deltas: list[Delta] = []
    tokens: list[Token] = []


class Envelope(ABC):
    """The forms of one answer. `scored`: with log-probabilities."""

    def __init__(self, *, number: str, model: str, created: int, scored: bool) -> None:
        self._number, self._model, self._created, self._scored = number, model, created, scored
        self._calls = 0
        self._begun = False

    @abstractmethod
    def whole(self, parts: Sequence[AnswerPart], finish: str, usage: dict[str, int]) -> bytes:
        """The whole answer."""

    @abstractmethod
    def part(self, read: AnswerPart) -> bytes:
        """An event of a stream."""

    @abstractmethod
    def last(self, finish: str, usage: dict[str, int] | None) -> bytes:
        """The events that end a stream."""

    def _object(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self._number,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
            **more,
        }

    def _called(self, call: ToolCall) -> dict[str, Any]:
        self._calls += 1
        function = {"name": call.name, "arguments": call.arguments}
        return {
            "id": f"call-{self._number}-{self._calls}",
            "type": "function",
            "function": function,
        }


class Chat(Envelope):
    """Forms of `/v1/chat/completions`."""

    def whole(self, parts: Sequence[AnswerPart], finish: str, usage: dict[str, int]) -> bytes:
        deltas = [delta for part in parts for delta in part.deltas]
        text = "".join(delta for delta in deltas if isinstance(delta, str))
        calls = [self._called(delta) for delta in deltas if isinstance(delta, ToolCall)]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not calls else None,
            "refusal": None,
        }
        if calls:
            message["tool_calls"] = calls
        tokens = [token for part in parts for token in part.tokens]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._scores(tokens),
            "finish_reason": finish,
        }
        return msgspec.json.encode(self._object("chat.completion", [choice], usage=usage))

    def part(self, read: AnswerPart) -> bytes:
        text = "".join(delta for delta in read.deltas if isinstance(delta, str))
        calls = [delta for delta in read.deltas if isinstance(delta, ToolCall)]
        delta: dict[str, Any] = {} if self._begun else {"role": "assistant"}
        self._begun = True
        if text:
            delta["content"] = text
        if calls:
            delta["tool_calls"] = [{"index": self._calls, **self._called(call)} for call in calls]
        return event(self._chunk(delta, None, self._scores(read.tokens)))

    def last(self, finish: str, usage: dict[str, int] | None) -> bytes:
        end = event(self._chunk({}, finish, None))
        return (
            end
            if usage is None
            else end + event(self._object("chat.completion.chunk", [], usage=usage))
        )

    def _chunk(
        self, delta: dict[str, Any], finish: str | None, scores: dict[str, Any] | None
    ) -> dict[str, Any]:
        return self._object(
            "chat.completion.chunk",
            [{"index": 0, "delta": delta, "logprobs": scores, "finish_reason": finish}],
        )

    def _scores(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self._scored:
            return None
        content: list[dict[str, Any]] = [
            {"token": token.text, "logprob": token.behaviour, "bytes": None, "top_logprobs": []}
            for token in tokens
        ]
        return {"content": content, "refusal": None}


class Text(Envelope):
    """Forms of `/v1/completions`."""

    def whole(self, parts: Sequence[AnswerPart], finish: str, usage: dict[str, int]) -> bytes:
        text = "".join(delta for part in parts for delta in part.deltas if isinstance(delta, str))
        tokens = [token for part in parts for token in part.tokens]
        return msgspec.json.encode(
            self._object("text_completion", [self._choice(text, tokens, finish)], usage=usage)
        )

    def part(self, read: AnswerPart) -> bytes:
        text = "".join(delta for delta in read.deltas if isinstance(delta, str))
        return event(self._object("text_completion", [self._choice(text, read.tokens, None)]))

    def last(self, finish: str, usage: dict[str, int] | None) -> bytes:
        end = event(self._object("text_completion", [self._choice("", [], finish)]))
        return (
            end if usage is None else end + event(self._object("text_completion", [], usage=usage))
        )

    def _choice(self, text: str, tokens: Sequence[Token], finish: str | None) -> dict[str, Any]:
        scores = {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.behaviour for token in tokens],
            "top_logprobs": None,
        }
        return {
            "index": 0,
            "text": text,
            "logprobs": scores if self._scored else None,
            "finish_reason": finish,
        }


def event(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def failed(error: GatewayError) -> bytes:
    """The end of a stream that had begun when it failed."""
    return b"data: " + error.body() + b"\n\n"


DONE = b"data: [DONE]\n\n"
"""The end of a stream."""


def models(name: str) -> bytes:
    """The answer of `/v1/models`."""
    return msgspec.json.encode(
        {
            "object": "list",
            "data": [{"id": name, "object": "model", "created": 0, "owned_by": "asyncrl"}],
        }
    )
