"""Which prompt comes next. Invariant: the n-th prompt of a run depends on (seed, n) alone, so a cursor is all that a resumed run needs."""

from __future__ import annotations

import random
from typing import Protocol

import numpy as np

from asyncrl.messages import Purpose


class Source(Protocol):
    """Prompts by split and place (a task)."""

    def size(self, purpose: Purpose) -> int: ...

    def prompt(self, purpose: Purpose, item: int) -> str: ...


class Encoder(Protocol):
    """Text to ids."""

    @property
    def sampled(self) -> int:
        """How many different ids the model can sample."""
        ...

    def encode(self, text: str) -> list[int]: ...


class Prompts:
    """The training prompts, each epoch in an order of its own; and the held-out ones, in theirs."""

    def __init__(self, source: Source, encoder: Encoder, *, seed: int, epochs: int) -> None:
        self._source = source
        self._encoder = encoder
        self._seed = seed
        self._epochs = epochs
        self._order: tuple[int, list[int]] = (-1, [])

    @property
    def vocabulary(self) -> int:
        """Every id that is sampled is smaller."""
        return self._encoder.sampled

    def train_item(self, cursor: int) -> int | None:
        """The item at a place in the run's stream of prompts; None when the epochs are over (0 epochs: never)."""
        size = self._source.size("train")
        epoch, place = divmod(cursor, size)
        if self._epochs and epoch >= self._epochs:
            return None
        if self._order[0] != epoch:
            order = list(range(size))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._order = epoch, order
        return self._order[1][place]

    def evaluation_items(self) -> range:
        return range(self._source.size("evaluation"))

    def ids(self, purpose: Purpose, item: int) -> bytes:
        """The prompt's token ids, int32."""
        return np.asarray(self._encoder.encode(self._source.prompt(purpose, item)), np.int32).tobytes()
