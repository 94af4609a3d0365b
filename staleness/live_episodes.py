"""The number of agents' episodes that keep engines at work. Invariant: it follows from seconds
alone, so it is the same however long a second is.

An episode needs a slot only while one of its calls is decoded. By Little's law, all slots are at
work with this number of live episodes:

    slots × (1 + seconds for which agents are at work / seconds for which slots decode)

`HEADROOM` is added, because the number of working agents varies. Both seconds are integrals over
time of how many do so, so a tool that hangs counts as the one episode that it holds up, however
long. They are decayed with each call, so the ratio is that of about the last `MEMORY` calls of each
slot.
"""

from __future__ import annotations

import math

HEADROOM = 1.25
"""With tools ten times as slow as decoding engines are at work for 0.95 of the time with the mean
need alone, and always with a quarter more (`bench/slow_tools.py`)."""
MEMORY = 8
"""Calls of each slot that are remembered."""
LEAST = 64
"""Calls that are remembered at least."""


class LiveEpisodes:
    """Counts how many episodes may be live. Before the first call has ended that is one for each
    slot; until each slot has had one, the ratio counts in part.

    >>> live = LiveEpisodes()
    >>> live.most(32)  # nothing is known yet
    32
    >>> live.observe(0.0, thinking=320, decoding=32)
    >>> live.observe(1.0, thinking=320, decoding=32)
    >>> for _ in range(32):
    ...     live.ended(32)
    >>> round(live.ratio), live.most(32)  # 32 × 11 × 1.25
    (10, 440)
    """

    def __init__(self) -> None:
        self._at: float | None = None
        self._thinking = self._decoding = 0
        self._thought_s = self._decoded_s = 0.0
        self._calls = 0

    def observe(self, now: float, thinking: int, decoding: int) -> None:
        """From `now` on (seconds) this many agents are `thinking`, and this many slots `decoding`,
        until the next observation."""
        if self._at is not None:
            self._thought_s += (now - self._at) * self._thinking
            self._decoded_s += (now - self._at) * self._decoding
        self._at, self._thinking, self._decoding = now, thinking, decoding

    def ended(self, slots: int) -> None:
        """Note that a call of an episode has ended; engines have this many slots."""
        self._calls += 1
        kept = 1 - 1 / max(LEAST, MEMORY * slots)
        self._thought_s *= kept
        self._decoded_s *= kept

    @property
    def ratio(self) -> float:
        """Seconds that agents are at work for each second that a slot decodes; 0 before any is
        known."""
        return self._thought_s / self._decoded_s if self._calls and self._decoded_s else 0.0

    def most(self, slots: int) -> int:
        """The episodes that may be live, with engines of this many slots."""
        known = min(1.0, self._calls / slots) if slots else 0.0
        return math.ceil(slots * (1 + known * (HEADROOM * (1 + self.ratio) - 1)))
