"""Parts of a model's reply: text, thoughts and tool calls. Invariant: text is released as soon as
it cannot be the start of a call, and none is lost: what looked like a call but is not one is
released as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each tool's parameters, by the tool's name."""


class ToolCall(msgspec.Struct, frozen=True):
    """`arguments` is JSON as the model wrote it, an object. `id` is the number that the model gave
    the call; empty where its format has none."""

    name: str
    arguments: str
    id: str = ""


class Thought(msgspec.Struct, frozen=True):
    """A part of the model's thoughts before its answer. `raw` is the text as sampled, with its
    marks."""

    text: str
    raw: str = ""


Delta = str | Thought | ToolCall
"""A part of a reply: text, a thought, or a call."""


class ToolParser(Protocol):
    """Reads a model's text as it arrives."""

    def push(self, text: str) -> list[Delta]: ...

    def end(self) -> list[Delta]:
        """The rest, once the text has ended."""
        ...


class PlainText:
    """No tools: text is text."""

    def push(self, text: str) -> list[Delta]:
        return [text] if text else []

    def end(self) -> list[Delta]:
        return []
