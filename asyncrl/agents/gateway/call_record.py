"""The record of one call, made as its tokens arrive. Invariant: it holds the tokens that the agent
could read, up to the one that ended the answer."""

from __future__ import annotations

import hashlib
import string

import msgspec
import numpy as np

from asyncrl.agents.gateway.generation import GeneratedPiece
from asyncrl.agents.gateway.inner_call import AnswerPart, Token
from asyncrl.agents.gateway.reading import ReplyReader
from asyncrl.agents.gateway.tools import Delta, ToolCall
from asyncrl.messages import Finish
from asyncrl.tasks.text import Tokenizer

_LETTERS = string.ascii_letters + string.digits


class CallRecord:
    """Takes the pieces of a call and keeps the tokens that were sampled up to its end."""

    def __init__(
        self,
        reading: ReplyReader,
        tokenizer: Tokenizer,
        vocabulary: int,
        *,
        scored: bool,
        context: bytes = b"",
    ) -> None:
        self._context = context
        self._reading, self._tokenizer, self._vocabulary, self._scored = (
            reading,
            tokenizer,
            vocabulary,
            scored,
        )
        self.ids: list[int] = []
        self.deltas: list[Delta] = []
        self._calls = 0
        self.finish: Finish = "interrupted"
        self.broken = ""
        """The fault of the engine's tokens, in words."""
        self.refused = ""
        """The reason why a call was refused, a sentence."""

    @property
    def closed(self) -> bool:
        """True if the answer is over: a stop string is complete, or the engine sent invalid
        tokens."""
        return self._reading.stopped or bool(self.broken)

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer."""
        return self._reading.stop

    @property
    def called(self) -> bool:
        """True if the answer has a tool call."""
        return any(isinstance(delta, ToolCall) for delta in self.deltas)

    def take(self, piece: GeneratedPiece) -> AnswerPart:
        """Read a piece. Tokens after the end are ignored."""
        read = AnswerPart()
        self.broken = self.broken or self._wrong(piece)
        self.refused = self.refused or piece.refused
        for token, behaviour in zip(piece.ids.tolist(), piece.behaviour.tolist(), strict=True):
            if self.closed:
                break
            self.ids.append(token)
            read.deltas += self._reading.push(token)
            if self._scored:
                read.tokens.append(Token(self._tokenizer.decode([token], special=True), behaviour))
        if piece.finish:
            read.deltas += self._reading.end()
            self.finish = "interrupted" if self.broken else "stop" if self.closed else piece.finish
        read.deltas = [self._numbered(delta) for delta in read.deltas]
        self.deltas += read.deltas
        return read

    def _numbered(self, delta: Delta) -> Delta:
        """A call with a number: nine letters and digits, which every template accepts, made from
        the context, so that each attempt has the same."""
        if not isinstance(delta, ToolCall) or delta.id:
            return delta
        self._calls += 1
        seed = self._calls.to_bytes(4, "big") + self._context
        digest = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big")
        number = "".join(_LETTERS[digest // len(_LETTERS) ** i % len(_LETTERS)] for i in range(9))
        return msgspec.structs.replace(delta, id=number)

    def _wrong(self, piece: GeneratedPiece) -> str:
        """The fault of the engine's tokens, in words; empty if there is none."""
        if (
            len(piece.ids)
            and not 0 <= int(piece.ids.min()) <= int(piece.ids.max()) < self._vocabulary
        ):
            return f"the engine sampled an id outside the vocabulary of {self._vocabulary}"
        return (
            ""
            if np.isfinite(piece.behaviour).all()
            else "the engine returned a log-probability that is not a number"
        )
