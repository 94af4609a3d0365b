"""Weights that one thread gathers and another sends, one tensor at a time. Invariant: at most one
waits between them, and neither waits for the other for longer than `patience_s`.

Gathering a shard is a collective of several processes, which must run to its end: if the consumer
has stopped, the rest is gathered and dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

from asyncrl.weightsync.errors import TransferError


class Handoff:
    """Named tensors on their way from `put` to one consumer that iterates."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._news = threading.Condition()
        self._item: tuple[str, Tensor] | None = None
        self._filled = False  # there are no more
        self._failed = False
        self._left = False  # the consumer has stopped

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Hand over all that there is, by `put`, in the block."""
        try:
            yield
        except BaseException:
            self._failed = True
            raise
        finally:
            with self._news:
                self._filled = True
                self._news.notify_all()

    @property
    def left(self) -> bool:
        """True if the consumer has stopped."""
        return self._left

    def put(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Hand over some tensors, in this thread, and consume all of them whatever happens."""
        for item in tensors:
            self._put(item)

    def leave(self) -> None:
        """Take no more."""
        with self._news:
            self._left, self._item = True, None
            self._news.notify_all()

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors in their order. Raises TransferError where they do not come."""
        while (item := self._take()) is not None:
            yield item

    def _put(self, item: tuple[str, Tensor]) -> None:
        with self._news:
            self._news.wait_for(lambda: self._item is None or self._left, self._patience_s)
            if self._item is not None:
                self._left, self._item = True, None  # who takes them hangs
            if not self._left:
                self._item = item
            self._news.notify_all()

    def _take(self) -> tuple[str, Tensor] | None:
        with self._news:
            self._news.wait_for(
                lambda: self._item is not None or self._filled or self._left, self._patience_s
            )
            item, self._item = self._item, None
            if item is None and (self._failed or self._left or not self._filled):
                raise TransferError("the weights were not gathered to their end")
            self._news.notify_all()
            return item
