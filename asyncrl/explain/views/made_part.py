"""A piece of a page that is made when somebody asks for it. Invariant: it is not made again for
`AGAIN_S` seconds, nor for `rest` times the processor time that it took, however many ask.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import trio

AGAIN_S = 0.9
"""Seconds for which a piece is not made again at least."""


class MadePart:
    """A piece that `make` makes, in a thread, one at a time: who asks meanwhile gets the same.

    >>> part, asked = MadePart(lambda: b"<p>12 steps</p>", rest=400.0), []
    >>> async def ask_twice():
    ...     asked.extend([await part.body(), await part.body()])
    >>> trio.run(ask_twice)
    >>> asked[0] is asked[1]
    True
    """

    def __init__(self, make: Callable[[], bytes], rest: float) -> None:
        self._make, self._rest = make, rest
        self._turn, self._due = trio.Lock(), -math.inf
        self._body = b""

    async def body(self) -> bytes:
        """The piece as it is, or was not long ago. Raises what `make` raises."""
        async with self._turn:
            begun = trio.current_time()
            if begun >= self._due:
                self._body, took_s = await trio.to_thread.run_sync(self._timed)
                self._due = max(begun + AGAIN_S, trio.current_time() + self._rest * took_s)
            return self._body

    def _timed(self) -> tuple[bytes, float]:
        """The piece, and the processor time that it took, in seconds."""
        began = time.thread_time()
        return self._make(), time.thread_time() - began
