"""Foreign answers of a simulated run: what its file has is a function of the prompt."""

from __future__ import annotations

import zlib

import numpy as np

from asyncrl.config import Config
from asyncrl.engines.draws import stream
from asyncrl.messages import Finish, ForeignAnswer
from asyncrl.simulation import policy

KIND = 11


class FakeForeign:
    """Up to five answers to a prompt, and none to a quarter of them. Some are as long as a response
    may be, and of some the log-probabilities are not known."""

    def __init__(self, config: Config) -> None:
        self._most, self._source = config.rollout.max_new_tokens, config.foreign.imported

    def of(self, prompt: bytes) -> list[ForeignAnswer]:
        text = stream(KIND, zlib.crc32(prompt))
        return [
            self._answer(stream(text, number), f"line {number}")
            for number in range(text % 6 if text & 64 or text & 128 else 0)
        ]

    def _answer(self, drawn: int, origin: str) -> ForeignAnswer:
        tokens = policy.length(drawn, self._most)
        ids, behaviour = policy.sampled(drawn, KIND, 0, tokens)
        known = behaviour.astype(np.float32).tobytes() if drawn & 256 else b""
        finish: Finish = "length" if tokens == self._most else "stop"
        return ForeignAnswer(
            self._source, origin, -(drawn >> 12) % 3 - 2, ids.tobytes(), known, finish
        )
