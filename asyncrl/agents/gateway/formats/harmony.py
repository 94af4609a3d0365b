"""OpenAI's harmony, as gpt-oss writes it: messages with a channel each.

    <|channel|>analysis<|message|>…<|end|>                             a thought
    <|start|>assistant<|channel|>commentary to=functions.NAME
        <|constrain|>json<|message|>{…}<|call|>                        a call
    <|start|>assistant<|channel|>final<|message|>…<|return|>           the text

A text without these marks is a text.
"""

from __future__ import annotations

import re

from asyncrl.agents.gateway.formats.tool_format import ToolFormat, object_of, overlap
from asyncrl.agents.gateway.tools import Delta, Schemas, Thought, ToolCall

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")
_BEGINS = (_CHANNEL, _START, _MESSAGE, " to=", "to=", "assistant")


class Harmony:
    """Reads messages as they come: thoughts and text in parts, calls whole."""

    def __init__(self, schemas: Schemas) -> None:
        self._held, self._head, self._body = "", "", ""
        self._in_body = self._plain = self._begun = False

    def push(self, text: str) -> list[Delta]:
        self._held += text
        return self._deltas(whole=False)

    def end(self) -> list[Delta]:
        deltas = self._deltas(whole=True)
        if self._in_body:
            return [*deltas, *self._ended()]
        text, self._held = self._held, ""
        return [*deltas, *([text] if text.strip() else [])]

    def _deltas(self, *, whole: bool) -> list[Delta]:
        deltas: list[Delta] = []
        while True:
            if self._plain:
                text, self._held = self._held, ""
                return [*deltas, *([text] if text else [])]
            if self._in_body:
                ends = [(at, e) for e in (*_ENDS, _START) if (at := self._held.find(e)) >= 0]
                size = min(ends)[0] if ends else len(self._held)
                if not ends and not whole:
                    size -= max(overlap(self._held, e) for e in (*_ENDS, _START))
                deltas += self._said(self._held[:size])
                self._held = self._held[size:]
                if not ends:
                    return deltas
                deltas += self._ended()
                mark = min(ends)[1]
                self._held = self._held[0 if mark == _START else len(mark) :]
            elif not self._begun and not self._may_begin():
                self._plain = True
            elif (at := self._held.find(_MESSAGE)) >= 0:
                self._head, self._held = self._held[:at], self._held[at + len(_MESSAGE) :]
                self._in_body = self._begun = True
            else:
                return deltas

    def _may_begin(self) -> bool:
        """Tell whether the text begins like a message, as far as it has come."""
        return any(self._held.startswith(b) or b.startswith(self._held) for b in _BEGINS)

    @property
    def _recipient(self) -> str | None:
        found = _RECIPIENT.search(self._head)
        return None if found is None else found[1]

    def _said(self, text: str) -> list[Delta]:
        """A part of a message's body."""
        self._body += text
        if not text or self._recipient is not None:
            return []
        return [Thought(text) if "analysis" in self._head else text]

    def _ended(self) -> list[Delta]:
        """The end of a message."""
        name, body, head = self._recipient, self._body, self._head
        self._in_body, self._body, self._head = False, "", ""
        if name is None:
            return []
        arguments = object_of(body)
        return [f"{head}{_MESSAGE}{body}"] if arguments is None else [ToolCall(name, arguments)]


FORMAT = ToolFormat(
    "harmony",
    (_START, _CHANNEL, _MESSAGE, "<|constrain|>", *_ENDS),
    Harmony,
    always=True,
)
