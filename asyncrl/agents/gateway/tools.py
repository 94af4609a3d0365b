"""Calls of tools in a model's text. Invariant: text is released as soon as it cannot be the start
of a call, and none is lost: what looked like a call and is not one comes out as text."""

from __future__ import annotations

from typing import Protocol

import msgspec


class ToolCall(msgspec.Struct, frozen=True):
    """`arguments` is JSON as the model wrote it, an object."""

    name: str
    arguments: str


Delta = str | ToolCall
"""A part of a reply: text, or a call."""


class ToolParser(Protocol):
    """Reads a model's text as it comes."""

    def push(self, text: str) -> list[Delta]: ...

    def end(self) -> list[Delta]:
        """The rest, when the text has ended."""
        ...


class PlainText:
    """No tools: text is text."""

    def push(self, text: str) -> list[Delta]:
        return [text] if text else []

    def end(self) -> list[Delta]:
        return []


class _Body(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


class Hermes:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Qwen and Hermes models write
    it. White space around a call is part of the form, and not of the text."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._held = ""
        self._after_call = False

    def push(self, text: str) -> list[Delta]:
        self._held += text
        deltas: list[Delta] = []
        while True:
            start = self._held.find(self.OPEN)
            if start < 0:
                free = len(self._held) - _overlap(self._held, self.OPEN)
                free = len(self._held[:free].rstrip())
                return [*deltas, *self._text(free)]
            deltas += self._text(len(self._held[:start].rstrip()))
            body = self._held.lstrip()
            end = body.find(self.CLOSE)
            if end < 0:
                return deltas
            call = _parse(body[len(self.OPEN) : end])
            if call is not None:
                self._after_call = True
                deltas.append(call)
                self._held = body[end + len(self.CLOSE) :]
            else:
                deltas += self._text(len(self._held) - len(body) + len(self.OPEN))

    def end(self) -> list[Delta]:
        if self._after_call and not self._held.strip():
            self._held = ""
        return self._text(len(self._held))

    def _text(self, size: int) -> list[Delta]:
        """Release `size` characters of the held text; white space that follows a call is part of
        the call."""
        text, self._held = self._held[:size], self._held[size:]
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = False
        return [text] if text else []


def _overlap(text: str, start: str) -> int:
    """Number of characters at the end of `text` that may be the start of `start`."""
    return next(
        (
            size
            for size in range(min(len(text), len(start) - 1), 0, -1)
            if text.endswith(start[:size])
        ),
        0,
    )


def _parse(body: str) -> ToolCall | None:
    try:
        call = msgspec.json.decode(body, type=_Body)
        msgspec.json.decode(call.arguments, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    return ToolCall(call.name, bytes(call.arguments).decode())
