"""Thoughts before an answer, split off. Invariant: thoughts with their marks, then the
text that the inner parser gets, are the whole text."""

from __future__ import annotations

from asyncrl.agents.gateway.formats.tool_format import overlap
from asyncrl.agents.gateway.tools import Delta, Thought, ToolParser

PAIRS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
)
"""Marks of thoughts: the first pair whose end is in a chat template is that of its model."""


class Thoughts:
    """Reads a thought at the start of a reply, and gives the rest to `inner`. `opened` is the end
    of the prompt from the mark on, where the prompt opened the thought. Line breaks around a
    thought are part of the form."""

    def __init__(self, pair: tuple[str, str], inner: ToolParser, opened: str = "") -> None:
        self._open, self._close = pair
        self._inner, self._held, self._raw = inner, "", opened
        self._state = "inside" if opened else "before"
        self._begun = False

    def push(self, text: str) -> list[Delta]:
        if self._state == "behind":
            return self._inner.push(text)
        self._held += text
        if self._state == "closed":
            return self._push_closed()
        if self._state == "before":
            begun = self._held.lstrip()
            if begun.startswith(self._open):
                self._raw += self._held[: len(self._held) - len(begun)] + self._open
                self._held, self._state = begun[len(self._open) :], "inside"
            elif begun.startswith(self._close):
                self._state = "inside"
            elif begun and not self._open.startswith(begun) and not self._close.startswith(begun):
                return self._rest()
            else:
                return []
        end = self._held.find(self._close)
        if end >= 0:
            thought, rest = self._held[:end], self._held[end + len(self._close) :]
            self._held = rest
            self._state = "closed"
            deltas = self._thought(thought, self._close, last=True)
            return [*deltas, *self._push_closed()]
        free = len(self._held) - overlap(self._held, self._close)
        free = len(self._held[:free].rstrip("\n"))
        thought, self._held = self._held[:free], self._held[free:]
        return self._thought(thought, "", last=False)

    def end(self) -> list[Delta]:
        deltas: list[Delta] = []
        if self._state == "inside":
            deltas = self._thought(self._held, "", last=True)
        elif self._held and self._state == "before":
            deltas = self._inner.push(self._held)
        self._held = ""
        return [*deltas, *self._inner.end()]

    def _push_closed(self) -> list[Delta]:
        """Skip the line breaks behind a thought."""
        text = self._held.lstrip("\n")
        deltas: list[Delta] = []
        if skipped := self._held[: len(self._held) - len(text)]:
            deltas.append(Thought("", skipped))
        self._held = ""
        if not text:
            return deltas
        self._state = "behind"
        return [*deltas, *self._inner.push(text)]

    def _rest(self) -> list[Delta]:
        text, self._held, self._state = self._held, "", "behind"
        return self._inner.push(text)

    def _thought(self, text: str, close: str, *, last: bool) -> list[Delta]:
        raw, self._raw = self._raw + text + close, ""
        shown = text if self._begun else text.lstrip("\n")
        shown = shown.rstrip("\n") if last else shown
        self._begun = self._begun or bool(shown)
        return [Thought(shown, raw)] if raw else []
