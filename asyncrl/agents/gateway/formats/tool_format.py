"""A form of calls, and a parser for those that begin with a mark. Invariant: the deltas do not
depend on the pieces in which a text comes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from asyncrl.agents.gateway.tools import Delta, Schemas, ToolCall, ToolParser

_OFTEN, _PART = 64, 16
"""Reads of a call that is not complete, from which on it is read when it is a part longer."""
_DECODER = json.JSONDecoder()


class ToolFormat(NamedTuple):
    """`marks` are the texts that only calls have; special tokens with such names are kept in the
    text that `parser` reads. `always`: replies without tools have this form too."""

    name: str
    marks: tuple[str, ...]
    parser: Callable[[Schemas], ToolParser]
    always: bool = False


class CallsFound(NamedTuple):
    """Calls, and the number of characters that they take."""

    calls: list[ToolCall]
    size: int


class NeedsMore:
    """More text is needed."""


class NoCall:
    """The mark begins no call."""


WAIT, NO_CALL = NeedsMore(), NoCall()
Reading = CallsFound | NeedsMore | NoCall


class MarkedParser:
    """Reads calls that begin with one of `opens`. White space around a call is part of the form,
    and not of the text. `read(text, whole)` reads from a mark on; `whole`: the text has ended."""

    def __init__(self, opens: tuple[str, ...], read: Callable[[str, bool], Reading]) -> None:
        self._opens, self._read = opens, read
        self._held = ""
        self._after_call = False
        self._waits, self._due = 0, 0

    def push(self, text: str) -> list[Delta]:
        self._held += text
        if len(self._held) < self._due:
            return []
        return self._deltas(whole=False)

    def end(self) -> list[Delta]:
        deltas = self._deltas(whole=True)
        if self._after_call and not self._held.strip():
            self._held = ""
        return [*deltas, *self._text(len(self._held))]

    def _deltas(self, *, whole: bool) -> list[Delta]:
        deltas: list[Delta] = []
        while True:
            found = [(at, -len(o)) for o in self._opens if (at := self._held.find(o)) >= 0]
            if not found:
                free = len(self._held) - max(overlap(self._held, o) for o in self._opens)
                return [*deltas, *self._text(len(self._held[:free].rstrip()))]
            start, size = min(found)
            deltas += self._text(len(self._held[:start].rstrip()))
            body = self._held.lstrip()
            match self._read(body, whole):
                case CallsFound(calls, taken):
                    self._after_call = True
                    deltas += calls
                    self._held = body[taken:]
                case NoCall():
                    deltas += self._text(len(self._held) - len(body) - size)
                case _:
                    self._wait()
                    return deltas
            self._waits, self._due = 0, 0

    def _wait(self) -> None:
        """Read a call that goes on and on less and less often: reading costs its length."""
        self._waits += 1
        if self._waits > _OFTEN:
            self._due = len(self._held) + len(self._held) // _PART

    def _text(self, size: int) -> list[Delta]:
        """Release `size` characters of the held text; white space that follows a call is part of
        the call."""
        text, self._held = self._held[:size], self._held[size:]
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = False
        return [text] if text else []


class WholeParser:
    """Reads calls that are a whole reply. `may(text)` says whether a text that has just begun may
    be one; `read(text)` reads a whole one, None if it is none."""

    def __init__(
        self, may: Callable[[str], bool], read: Callable[[str], list[ToolCall] | None]
    ) -> None:
        self._may, self._read, self._held, self._plain = may, read, "", False

    def push(self, text: str) -> list[Delta]:
        if self._plain:
            return [text] if text else []
        self._held += text
        if self._may(self._held.lstrip()):
            return []
        self._plain = True
        return [self._held] if self._held else []

    def end(self) -> list[Delta]:
        if self._plain or not self._held:
            return []
        calls = self._read(self._held.strip())
        return [*calls] if calls else [self._held]


def overlap(text: str, start: str) -> int:
    """Number of characters at the end of `text` that may be the start of `start`."""
    return next(
        (
            size
            for size in range(min(len(text), len(start) - 1), 0, -1)
            if text.endswith(start[:size])
        ),
        0,
    )


class _Body(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()
    id: Any = ""


def calls_of(text: str) -> list[ToolCall] | None:
    """The calls in a JSON object `{"name": ..., "arguments": {...}}`, or in a list of such; None if
    it is none. `parameters` stands for `arguments`."""
    try:
        bodies = msgspec.json.decode(text, type=_Body | list[_Body])
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    found = []
    for body in bodies if isinstance(bodies, list) else [bodies]:
        raw = bytes(body.arguments) or bytes(body.parameters)
        arguments = object_of(raw.decode()) if raw else None
        if arguments is None:
            return None
        found.append(ToolCall(body.name, arguments, body.id if isinstance(body.id, str) else ""))
    return found or None


def object_of(text: str) -> str | None:
    """The text, if it is a JSON object; `{}` if it is empty."""
    text = text.strip() or "{}"
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    return text


def json_end(text: str, at: int) -> int | None:
    """The end of the JSON value that begins at `at`; None if it is none, or is not complete."""
    try:
        return _DECODER.raw_decode(text, at)[1]
    except (ValueError, RecursionError):
        return None


def cut_in_string(text: str) -> bool:
    """True if JSON ends within a string."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


def json_text(value: Any) -> str | None:
    """A value as JSON; None if it has none."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, TypeError, RecursionError):
        return None
    return text
