"""Standstill of a process: it did not run, because it was stopped, its machine was paused, or a
write to a terminal did not return.

A task that should wake at a known moment sees it by how late it wakes. One rule holds for every
deadline that a process keeps for others: time of a standstill does not count, and no deadline is
judged before what came meanwhile could be read. So no peer is blamed for time in which its messages
could not be read. Moments and deadlines are therefore read from a `RunClock`, which stops in a
standstill.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio

TICK_S = 1.0
"""Seconds between two looks at a deadline."""
LATE_S = 1.0
"""Seconds from which a late wake-up is a standstill; a busy process is late by less."""
_BRIEF_S = 0.01
"""Seconds that a wait for a deadline lasts at least, so that one that is stopped does not spin."""


def stood_s(due: float, now: float) -> float:
    """Seconds for which this process did not run, if it should wake at `due` and woke at `now`.

    Example: 0.0 at 0.9 s after `due`, and 100.0 at 100 s after it.
    """
    return now - due if now - due >= LATE_S else 0.0


class RunClock:
    """Trio's clock less the standstills of this process, in seconds. It never goes back.

    One task sleeps on it all the time (`sleep_until`) and sees standstills by waking late. Until
    that task wakes, the clock does not pass the moment at which it was due. So a reader that runs
    first after a standstill reads no time of it, and knows nothing of standstills. While no task
    sleeps on it, it is trio's clock less what was lost before.

    Example: a task is due at 10 s, and the process stops from 5 s to 60 s. The clock shows 10 s
    until the task has woken at 60 s, and 11 s at 61 s.
    """

    def __init__(self) -> None:
        self._lost_s = 0.0  # in all standstills so far
        self._limit = math.inf  # in trio's time: the clock goes no further for now

    def now(self) -> float:
        """Seconds on this clock."""
        return min(trio.current_time(), self._limit) - self._lost_s

    async def sleep_until(self, due: float, *, stopped: bool = False) -> float:
        """Sleep until `due`, in trio's time. Returns the seconds of the standstill that the sleep
        ended in, 0.0 if there was none. With `stopped` the clock stops for the whole sleep."""
        began = trio.current_time()
        self._limit = began if stopped else due
        try:
            await trio.sleep_until(due)
        finally:
            now = trio.current_time()
            stood = stood_s(due, now)
            self._lost_s += now - began if stopped else stood
            self._limit = math.inf
        return stood

    async def repeat(self, wait: Callable[[], Awaitable[None]], deadline: float) -> bool:
        """Do `wait()`, and do it again if a standstill cancelled it, until it returns or this clock
        shows `deadline`. Returns True if it returned. `wait` must be one that may be cancelled and
        begun again."""
        while (left_s := deadline - self.now()) > 0:
            with trio.move_on_after(max(left_s, _BRIEF_S)):
                await wait()
                return True
        return False


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
