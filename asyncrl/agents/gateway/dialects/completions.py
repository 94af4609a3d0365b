"""OpenAI's text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from asyncrl.agents.gateway.dialects.chat import (
    DONE,
    IGNORED,
    NEUTRAL,
    REFUSED,
    STOPS,
    CallRequest,
    event,
    one_choice,
    usage_of,
)
from asyncrl.agents.gateway.dialects.parameters import checked_stops, parse, served
from asyncrl.agents.gateway.errors import GatewayError, bad
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.inner_call import (
    AnswerPart,
    CallEnd,
    Dialect,
    Envelope,
    ModelCall,
    SampledChoice,
    Token,
    text_of,
)

TEXT_REFUSED = {
    **REFUSED,
    "echo": "an answer is what was sampled; put the prompt before it yourself",
    "suffix": "the model writes on from a prompt, and knows no text behind it",
}


class TextRequest(CallRequest, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: str | list[int | str | list[int]]
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    top_k: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def read(body: bytes, settings: Settings) -> ModelCall:
    """A request. Raises GatewayError."""
    asked, ignored = parse(
        body, TextRequest, settings, neutral=NEUTRAL, ignored=IGNORED, refused=TEXT_REFUSED
    )
    served(asked.model, settings)
    one_choice(asked.n, settings)
    if asked.best_of not in (None, 1, asked.n):
        raise bad("best_of must be n or left out: every answer is sampled once", "best_of")
    if asked.logprobs and settings.strict:
        raise bad(
            "logprobs must be 0 or left out: the gateway knows the log-probabilities of the "
            "tokens that were sampled alone",
            "logprobs",
        )
    return ModelCall(
        model=asked.model,
        prompt=_prompt(asked.prompt),
        budget=asked.max_tokens,
        stops=checked_stops(asked.stop, STOPS, "stop"),
        choices=asked.n or 1,
        stream=bool(asked.stream),
        usage=asked.usage,
        scored=asked.logprobs is not None,
        special=asked.skip_special_tokens is False,
        ignored=(*ignored, *(["logprobs"] if asked.logprobs else [])),
    )


def _prompt(prompt: str | list[int | str | list[int]]) -> str | list[int]:
    match prompt:
        case str(one) | [str(one)] | [list(one)]:
            return one
        case several:
            ids = [token for token in several if isinstance(token, int)]
            if len(ids) < len(several):
                raise bad(
                    "prompt must be one text, or the ids of one: make a call for each", "prompt"
                )
            return ids


class Text(Envelope):
    """Forms of `/v1/completions`."""

    def whole(self, choices: Sequence[SampledChoice]) -> bytes:
        answers = [
            self._choice(index, choice.text, choice.tokens, choice.end.finish)
            for index, choice in enumerate(choices)
        ]
        return msgspec.json.encode(
            self._object(answers, usage=usage_of([choice.end for choice in choices]))
        )

    def part(self, index: int, read: AnswerPart) -> bytes:
        choice = self._choice(index, text_of(read.deltas), read.tokens, None)
        return event(self._object([choice], **self._no_usage))

    def last(self, index: int, end: CallEnd) -> bytes:
        choice = self._choice(index, "", [], end.finish)
        return event(self._object([choice], **self._no_usage))

    def done(self, ends: Sequence[CallEnd]) -> bytes:
        return (event(self._object([], usage=usage_of(ends))) if self._call.usage else b"") + DONE

    @property
    def _no_usage(self) -> dict[str, None]:
        return {"usage": None} if self._call.usage else {}

    def failed(self, error: GatewayError) -> bytes:
        return b"data: " + error.body() + b"\n\n"

    def _object(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self._facts.number}",
            "object": "text_completion",
            "created": self._facts.created,
            "model": self._call.model,
            "choices": choices,
            **more,
        }

    def _choice(
        self, index: int, text: str, tokens: Sequence[Token], finish: str | None
    ) -> dict[str, Any]:
        scores = {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.behaviour for token in tokens],
            "top_logprobs": None,
        }
        return {
            "index": index,
            "text": text,
            "logprobs": scores if self._call.scored else None,
            "finish_reason": finish,
        }


DIALECT = Dialect("/completions", read, Text, GatewayError.body)
