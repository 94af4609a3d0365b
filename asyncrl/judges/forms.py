"""Forms of requests to a judge, and how a reply becomes a reward. Pure.

    chat         `POST URL/chat/completions` of OpenAI's API; the reply's score is the number after
                 its last marker, from 0 to the highest, and the reward its share of the highest
    group        as chat, about all answers of a group: a score for each, or a ranking
    classifier   `POST URL/classify` (or `/pooling`) of SGLang or vLLM; the reward is the number of
                 one class, as the server says it

Invariant: a text is put into the template once, so nothing in it is taken for a field; a reply
gives a finite reward or raises Unreadable.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from asyncrl.config.schema import JudgeConfig
from asyncrl.config.schema.judge_section import GROUP_MARKERS, GROUP_TEMPLATES
from asyncrl.judges.group_verdicts import listed, places, scores
from asyncrl.tasks.judge_request import GroupRequest, JudgeRequest

CHARACTERS = 4
"""Characters of a token, about, until the server says how many it has counted."""
PATHS = ("/classify", "/pooling")
"""Paths of classifiers; a url may end with one."""
_FIELD = re.compile(r"\{(question|answer|expected)\}")
_GROUP_FIELD = re.compile(r"\{(question|answers|expected)\}")
_NUMBER = r"[\s*_`:=\"']*([-+]?[0-9]+(?:\.[0-9]+)?)"


Asked = TypeVar("Asked", contravariant=True)
Ask = TypeVar("Ask", JudgeRequest, GroupRequest)
"""A request for an answer, or for a group."""


class Unreadable(Exception):
    """A reply without a score; the text says why, without quoting the reply."""


class Reading(msgspec.Struct, frozen=True):
    """The numbers in a reply, one for each distinct answer, and the tokens that its server counted;
    0 if it does not say."""

    numbers: list[float]
    tokens: int = 0


class Form(Protocol[Asked]):
    """One way to ask a judge."""

    path: str

    def body(self, request: Asked) -> dict[str, Any]:
        """The request for an answer, or several, as JSON."""
        ...

    def tokens(self, request: Asked) -> int:
        """About so many tokens it has to read and to write."""
        ...

    def read(self, reply: bytes, request: Asked) -> Reading:
        """The numbers that its reply gives. Raises Unreadable."""
        ...


def form_of(judge: JudgeConfig) -> Form[JudgeRequest]:
    """The form in which the settings have an answer asked about alone."""
    return ChatForm(judge) if judge.kind == "chat" else ClassifierForm(judge)


def keys_of(form: Form[Ask], judge: JudgeConfig, request: Ask) -> list[str]:
    """Digests of all that decides the number of each answer: the text, and how its reply is read.
    Not the address: the same model may be served at another."""
    reading = [judge.kind, judge.marker, judge.highest, judge.label]
    own: list[Any] = [form.body(request), reading]
    if not isinstance(request, GroupRequest):
        return [_digest(own)]
    key = _digest([*own, judge.members])
    return [f"{key}.{place}" for place in range(len(request.distinct))]


def _digest(content: list[Any]) -> str:
    return hashlib.blake2b(msgspec.json.encode(content), digest_size=16).hexdigest()


def filled(template: str, request: JudgeRequest) -> str:
    """The template with its fields filled.

    >>> filled("{answer}|{expected}|{other}", JudgeRequest("q", "{expected}", "4"))
    '{expected}|4|{other}'
    """
    fields = {
        "question": request.question,
        "answer": request.answer,
        "expected": request.expected,
    }
    return _put(_FIELD, template, fields)


def filled_with_group(template: str, request: GroupRequest) -> str:
    """The template with the fields of a group filled."""
    first = request.members[0]
    fields = {
        "question": first.question,
        "answers": listed(request.distinct),
        "expected": first.expected,
    }
    return _put(_GROUP_FIELD, template, fields)


def _put(field: re.Pattern[str], template: str, fields: Mapping[str, str]) -> str:
    return field.sub(lambda found: fields[found[1]], template)


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
        return _chat(self._judge, filled(self._judge.template, request))

    def tokens(self, request: JudgeRequest) -> int:
        return len(filled(self._judge.template, request)) // CHARACTERS + self._judge.max_tokens

    def read(self, reply: bytes, request: JudgeRequest) -> Reading:
        text, cut, tokens = _written(reply)
        scores = self._score.findall(text)
        if not scores:
            raise Unreadable(cut or f"no number stands after the marker {self._judge.marker}")
        score, highest = float(scores[-1]), self._judge.highest
        if not 0 <= score <= highest:
            raise Unreadable(f"a score is not between 0 and {highest:g} (judge.highest)")
        return Reading([score / highest], tokens)


class GroupForm:
    """A model that writes a verdict on all answers of a group. Its numbers are scores, as shares of
    the highest, or places, the best 0."""

    path = ChatForm.path

    def __init__(self, judge: JudgeConfig) -> None:
        self._judge = judge
        self._template = judge.group_template or GROUP_TEMPLATES[judge.members]
        self._marker = re.compile(re.escape(GROUP_MARKERS[judge.members]), re.IGNORECASE)

    def body(self, request: GroupRequest) -> dict[str, Any]:
        return _chat(self._judge, filled_with_group(self._template, request))

    def tokens(self, request: GroupRequest) -> int:
        read = len(filled_with_group(self._template, request)) // CHARACTERS
        return read + self._judge.max_tokens

    def read(self, reply: bytes, request: GroupRequest) -> Reading:
        text, cut, tokens = _written(reply)
        *before, said = self._marker.split(text)
        if not before:
            raise Unreadable(cut or f"no verdict stands after {GROUP_MARKERS[self._judge.members]}")
        count, highest = len(request.distinct), self._judge.highest
        try:
            numbers = (
                [float(place) for place in places(said, count)]
                if self._judge.members == "ranked"
                else [score / highest for score in scores(said, count, highest)]
            )
        except ValueError as error:
            raise Unreadable(cut or str(error)) from None
        return Reading(numbers, tokens)


def _chat(judge: JudgeConfig, text: str) -> dict[str, Any]:
    """The request of a chat model about a text."""
    messages = [{"role": "user", "content": text}]
    own = {"model": judge.model, "messages": messages, "max_tokens": judge.max_tokens}
    return {"temperature": 0.0, **judge.params, **own}


def _written(reply: bytes) -> tuple[str, str, int]:
    """The text of a chat model; a sentence if it was cut, else nothing; and the tokens of both
    texts, 0 if they are not known. Raises Unreadable."""
    said = _decoded(reply, _Completion)
    if not said.choices:
        raise Unreadable("it has no choice")
    choice = said.choices[0]
    cut = choice.finish_reason == "length"
    return (
        choice.message.content or "",
        "it was cut at judge.max_tokens before the score" if cut else "",
        (said.usage and said.usage.total_tokens) or 0,
    )


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

    def read(self, reply: bytes, request: JudgeRequest) -> Reading:
        said = _decoded(reply, _Classified | list[_Classified])
        first = (said or [_Classified()])[0] if isinstance(said, list) else said
        numbers = first.embedding or (_numbers(first.data[0]) if first.data else [])
        tokens = (first.usage and first.usage.total_tokens) or 0
        label = self._judge.label
        if label >= len(numbers):
            raise Unreadable(f"it has {len(numbers)} classes, and judge.label is {label}")
        if not math.isfinite(numbers[label]):
            raise Unreadable("its number is not finite")
        return Reading([numbers[label]], tokens)


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
