"""A model's answer, from ids to the text that an agent reads. Invariant: the parts together are the
text of all ids up to the first stop string, and no part ends within a character."""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.agents.gateway.tools import Delta, ToolParser
from asyncrl.tasks.text import Tokenizer

_BROKEN = "�"
_PATIENCE = 8


class Detokenizer:
    """Decodes ids to text, one at a time. A text that ends in a broken character waits for the rest
    of it. With `special` it contains the names of special tokens, except the one that ends the
    answer; the names in `marks` are always kept."""

    def __init__(
        self, tokenizer: Tokenizer, *, special: bool = False, marks: Sequence[str] = ()
    ) -> None:
        self._tokenizer, self._special = tokenizer, special or bool(marks)
        self._skipped = frozenset[int]()
        if marks and not special:
            named = tokenizer.special_ids
            self._skipped = frozenset(
                token for name, token in named.items() if not any(name in m for m in marks)
            )
        self._before: list[int] = []
        self._held: list[int] = []

    def push(self, token: int) -> str:
        if token in self._skipped or (self._special and self._tokenizer.ends(token)):
            return ""
        self._held.append(token)
        text = self._text(self._held)
        if not text.endswith(_BROKEN):
            return self._give(len(self._held))
        if len(self._held) >= _PATIENCE:  # no character is that long: some of it is just broken
            for last in range(1, 5):
                cut = len(self._held) - last
                if self._text(self._held[:cut]) + self._decode(self._held[cut:]) == text:
                    return self._give(cut)
        return ""

    def end(self) -> str:
        return self._give(len(self._held))

    def _text(self, ids: list[int]) -> str:
        """The text that `ids` add to what came before: some decoders treat the first token
        differently."""
        return self._decode([*self._before, *ids])[len(self._decode(self._before)) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, special=self._special)

    def _give(self, tokens: int) -> str:
        released, text = self._held[:tokens], self._text(self._held[:tokens])
        self._before = released if text else [*self._before, *released][-_PATIENCE:]
        self._held = self._held[tokens:]
        return text


class StopStrings:
    """Cuts a text before the first of these strings, and holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found: str | None = None
        """The first stop string, if any."""

    @property
    def complete(self) -> bool:
        return self.found is not None

    def push(self, text: str) -> str:
        self._held += text
        starts = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if starts:
            start, self.found = min(starts)
            return self._held[:start]
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        start = max(0, len(self._held) - longest)
        keep = next(
            (
                at
                for at in range(start, len(self._held))
                if any(s.startswith(self._held[at:]) for s in self._stops)
            ),
            len(self._held),
        )
        free, self._held = self._held[:keep], self._held[keep:]
        return free

    def end(self) -> str:
        return "" if self.complete else self._held


class ReplyReader:
    """Reads one answer. `stopped` says that a stop string is complete: later tokens belong to no
    answer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        parser: ToolParser,
        *,
        special: bool = False,
        marks: Sequence[str] = (),
    ) -> None:
        self._detokenizer, self._stops, self._parser = (
            Detokenizer(tokenizer, special=special, marks=marks),
            StopStrings(stops),
            parser,
        )

    @property
    def stopped(self) -> bool:
        return self._stops.complete

    @property
    def stop(self) -> str | None:
        """The stop string that is complete."""
        return self._stops.found

    def push(self, token: int) -> list[Delta]:
        return self._parser.push(self._stops.push(self._detokenizer.push(token)))

    def end(self) -> list[Delta]:
        """The rest, after the last token."""
        text = "" if self.stopped else self._stops.push(self._detokenizer.end())
        return [*self._parser.push(text + self._stops.end()), *self._parser.end()]
