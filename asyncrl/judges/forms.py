"""Forms of requests to a judge, and how a reply becomes a reward. Pure.

    chat         `POST URL/chat/completions` of OpenAI's API; the reply's score is the number after
                 its last marker, from 0 to the highest, and the reward its share of the highest
    classifier   `POST URL/classify` (or `/pooling`) of SGLang or vLLM; the reward is the number of
                 one class, as the server says it

Invariant: a text is put into the template once, so nothing in it is taken for a field; a reply
gives a finite reward or raises Unreadable.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any, Protocol

import msgspec

from asyncrl.config.schema import JudgeConfig
from asyncrl.tasks.judge_request import JudgeRequest

CHARACTERS = 4
"""Characters of a token, about, until the server says how many it has counted."""
PATHS = ("/classify", "/pooling")
"""Paths of classifiers; a url may end with one."""
_FIELD = re.compile(r"\{(question|answer|expected)\}")
_NUMBER = r"[\s*_`:=\"']*([-+]?[0-9]+(?:\.[0-9]+)?)"


class Unreadable(Exception):
    """A reply without a score; the text says why, without quoting the reply."""


class Reading(msgspec.Struct, frozen=True):
    """The reward in a reply, and the tokens that its server counted; 0 if it does not say."""

    reward: float
    tokens: int = 0


class Form(Protocol):
    """One way to ask a judge."""

    path: str

    def body(self, request: JudgeRequest) -> dict[str, Any]:
        """The request for an answer, as JSON."""
        ...

    def tokens(self, request: JudgeRequest) -> int:
        """About so many tokens it has to read and to write."""
        ...

    def read(self, reply: bytes) -> Reading:
        """The reward that its reply gives. Raises Unreadable."""
        ...


def form_of(judge: JudgeConfig) -> Form:
    """The form that the settings name."""
    return ChatForm(judge) if judge.kind == "chat" else ClassifierForm(judge)


def key_of(form: Form, judge: JudgeConfig, request: JudgeRequest) -> str:
    """A digest of all that decides a reward: the text, and how its reply is read. Not the address:
    the same model may be served at another."""
    reading = [judge.kind, judge.marker, judge.highest, judge.label]
    text = msgspec.json.encode([form.body(request), reading])
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def filled(template: str, request: JudgeRequest) -> str:
    """The template with its fields filled.

    >>> filled("{answer}|{expected}|{other}", JudgeRequest("q", "{expected}", "4"))
    '{expected}|4|{other}'
    """
    return _FIELD.sub(lambda field: str(getattr(request, field[1])), template)


class _Written(msgspec.Struct):
    content: str | None = None


class _WrittenChoice(msgspec.Struct):
    message: _Written
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    total_tokens: int | None = None


class _Completion(msgspec.Struct):
    choices: list[_WrittenChoice]
    usage: _Usage | None = None


class ChatForm:
    """A model that writes a score."""

    path = "/chat/completions"

    def __init__(self, judge: JudgeConfig) -> None:
        self._judge = judge
        self._score = re.compile(re.escape(judge.marker.strip()) + _NUMBER, re.IGNORECASE)

    def body(self, request: JudgeRequest) -> dict[str, Any]:
        judge = self._judge
        text = filled(judge.template, request)
        messages = [{"role": "user", "content": text}]
        own = {"model": judge.model, "messages": messages, "max_tokens": judge.max_tokens}
        return {"temperature": 0.0, **judge.params, **own}

    def tokens(self, request: JudgeRequest) -> int:
        return len(filled(self._judge.template, request)) // CHARACTERS + self._judge.max_tokens

    def read(self, reply: bytes) -> Reading:
        said = _decoded(reply, _Completion)
        if not said.choices:
            raise Unreadable("it has no choice")
        choice = said.choices[0]
        scores = self._score.findall(choice.message.content or "")
        if not scores:
            cut = choice.finish_reason == "length"
            raise Unreadable(
                "it was cut at judge.max_tokens before the score"
                if cut
                else f"no number stands after the marker {self._judge.marker}"
            )
        score, highest = float(scores[-1]), self._judge.highest
        if not 0 <= score <= highest:
            raise Unreadable(f"a score is not between 0 and {highest:g} (judge.highest)")
        return Reading(score / highest, (said.usage and said.usage.total_tokens) or 0)


class _Class(msgspec.Struct):
    probs: list[float] | None = None
    data: list[float | list[float]] | None = None


class _Classified(msgspec.Struct):
    embedding: list[float] | None = None
    """SGLang's."""
    data: list[_Class] | None = None
    """vLLM's."""
    usage: _Usage | None = None


class ClassifierForm:
    """A reward model with a scalar head, or a classifier, that SGLang or vLLM serves. SGLang reads
    `text` and vLLM `input`; each ignores the other's."""

    def __init__(self, judge: JudgeConfig) -> None:
        self._judge = judge
        self.path = "" if judge.url.rstrip("/").endswith(PATHS) else PATHS[0]

    def body(self, request: JudgeRequest) -> dict[str, Any]:
        text = filled(self._judge.template, request)
        model = {"model": self._judge.model} if self._judge.model else {}
        return {**self._judge.params, **model, "text": text, "input": text}

    def tokens(self, request: JudgeRequest) -> int:
        return len(filled(self._judge.template, request)) // CHARACTERS + 1

    def read(self, reply: bytes) -> Reading:
        said = _decoded(reply, _Classified | list[_Classified])
        first = (said or [_Classified()])[0] if isinstance(said, list) else said
        numbers = first.embedding or (_numbers(first.data[0]) if first.data else [])
        tokens = (first.usage and first.usage.total_tokens) or 0
        label = self._judge.label
        if label >= len(numbers):
            raise Unreadable(f"it has {len(numbers)} classes, and judge.label is {label}")
        if not math.isfinite(numbers[label]):
            raise Unreadable("its number is not finite")
        return Reading(numbers[label], tokens)


def _numbers(said: _Class) -> list[float]:
    """The numbers of the classes."""
    if said.probs is not None:
        return said.probs
    rows = [row for row in said.data or [] if isinstance(row, list)]
    if len(rows) > 1:
        raise Unreadable("it has numbers for each token, and not one for the text")
    return rows[0] if rows else [row for row in said.data or [] if not isinstance(row, list)]


def _decoded(reply: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(reply, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unreadable("it is not what this API answers") from None
