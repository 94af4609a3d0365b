"""Time of a simulated world."""

from __future__ import annotations

import math

import trio


class VirtualClock(trio.abc.Clock):
    """Clock of a trio run in which nothing comes from outside: as soon as no task can go on, it is
    the moment for which the first of them waits. It starts at 0 s.

    `trio.testing.MockClock` does the same, and looks twice at what cannot come.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Seconds to wait for the deadline: trio asks when no task can go on."""
        if deadline < math.inf:
            self.jump(max(0.0, deadline - self._now))
            return 0.0
        return math.inf

    def jump(self, seconds: float) -> None:
        """Let so many seconds (>= 0) pass."""
        self._now += seconds
