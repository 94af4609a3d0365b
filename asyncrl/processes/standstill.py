"""Standstill of a process: it did not run, because it was stopped, its machine was paused, or a
write to a terminal did not return.

Whoever has a task that wakes at a known moment sees it by how late the task wakes. One rule holds
for every deadline that a process keeps for others: it is put off by the standstill, and is not
looked at before what came meanwhile could be read. So nobody is blamed for time in which nobody
could be heard.
"""

from __future__ import annotations

import math

import trio

TICK_S = 1.0
"""Seconds between two looks at a deadline."""
LATE_S = 1.0
"""Seconds from which a late wake-up is a standstill; a busy process is late by less."""


def stood_s(due: float, now: float) -> float:
    """Seconds for which this process stood still, if it was to wake at `due` and woke at `now`.

    Example: 0.0 at 0.9 s after `due`, and 100.0 at 100 s after it.
    """
    return now - due if now - due >= LATE_S else 0.0


def shifted(since: float, stood: float, now: float) -> float:
    """The moment `since`, put off by `stood` seconds, but not beyond `now`: what began after the
    standstill has lost nothing by it."""
    return max(since, min(now, since + stood))


class Patience:
    """A deadline in seconds on trio's clock, which may be changed at any time, and which the
    standstills of this process put off. It is infinite at first."""

    def __init__(self) -> None:
        self.deadline = math.inf

    async def over(self) -> None:
        """Return when the deadline has passed."""
        while True:
            due = min(self.deadline, trio.current_time() + TICK_S)
            await trio.sleep_until(due)
            now = trio.current_time()
            if stood := stood_s(due, now):
                self.deadline = max(self.deadline + stood, now + TICK_S)
            elif now >= self.deadline:
                return
