"""Starts of agents' programs: which attempts may start now. Pure: no clock, no process.

Invariant: an attempt waits, then it starts, then it runs, in the order of asking. It starts until
its first request, its end, or its use of processor says otherwise, and `LONGEST_S` at most: one
that never calls is in nobody's way for longer.

A program costs a second of a core before its first call (`import openai`), and needs hardly any of
it afterwards. So the number that starts at a time is bound, and the number that runs is not. The
bound begins at the cores of this process. It follows how long starts had to wait for a core: it
grows by one with each round of starts that hardly waited, and shrinks by a quarter where they spent
most of their time waiting, once in a round [additive increase, multiplicative decrease]. Where the
kernel does not tell, a start that took twice as long as the quickest did wait. Memory bounds it
too: each start gets as much as the largest so far needed. Attempts that run and want a core count
as those that start; while they are too many, one starts every `HOLD_S` seconds.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

import msgspec

from asyncrl.messages import StartCounts
from asyncrl.runtime.processes.usage import Used

MOST = 2
"""Attempts that start at a time, for each core. The rest of the load is the run's own."""
GROW, SHRINK = 0.3, 0.6
"""Shares of its time for which a start waits for a core: below one there is room for more, above
the other there are too many."""
LESS = 0.75
"""Factor by which the bound shrinks."""
QUIET_S = 1.0
"""Seconds without use of a core after which an attempt waits for something else: it has started."""
IDLE = 0.05
"""Share of a core that counts as none."""
CPU_S = 20.0
"""Seconds of a core after which an attempt is at its work: it has started."""
LONGEST_S = 120.0
"""Seconds after which an attempt has started, whatever it does."""
HOLD_S = 30.0
"""Seconds for which no attempt starts while as many as `MOST` for each core want one: those that
start, and those that run."""
START_BYTES = 2**27
"""Bytes of memory that a start needs, before any was seen."""
QUICKEST = 32
"""Starts whose quickest is remembered."""

StartState = Literal["waiting", "starting", "running"]


class _Start(msgspec.Struct):
    since: float
    round: int
    used: Used | None = None
    seen: float = 0.0
    quiet_since: float = 0.0


class StartLimit:
    """The attempts of one process, by number. The caller tells what happens to them, and starts
    those that are `due`.

    >>> limit = StartLimit(cores=2)
    >>> for attempt in range(3):
    ...     limit.wait(attempt)
    >>> limit.due(now=0.0, free=2**40)
    [0, 1]
    >>> limit.called(0, now=1.0)
    >>> limit.state(0), limit.state(1), limit.due(now=1.0, free=2**40)
    ('running', 'starting', [2])
    """

    def __init__(self, cores: int) -> None:
        self._most = float(MOST * cores)
        self._limit = float(cores)
        self._waiting: deque[int] = deque()
        self._starting: dict[int, _Start] = {}
        self._running: set[int] = set()
        self._wanting = 0
        self._begun = -math.inf
        self._round = 0
        self._took: deque[float] = deque(maxlen=QUICKEST)
        self._bytes = START_BYTES

    def wait(self, attempt: int) -> None:
        """An attempt wants to start."""
        self._waiting.append(attempt)

    def due(self, now: float, free: int) -> list[int]:
        """Start those that may start now, with so many bytes of memory that are free; the caller
        does so. One may always start where none does anything."""
        begun = list[int]()
        while self._waiting and self._room(now, free):
            begun.append(attempt := self._waiting.popleft())
            self._starting[attempt] = _Start(now, self._round)
            self._begun = now
        return begun

    def _room(self, now: float, free: int) -> bool:
        starting = len(self._starting)
        if not starting and not self._running:
            return True
        if starting + self._wanting >= self._most and now - self._begun < HOLD_S:
            return False
        return starting < int(self._limit) and self._bytes * (starting + 1) <= free

    def called(self, attempt: int, now: float) -> None:
        """The first request of an attempt has come; later ones change nothing."""
        if (start := self._starting.get(attempt)) is not None:
            self._run(attempt)
            self._learn(start, now - start.since)

    def ended(self, attempt: int, now: float) -> None:
        """An attempt has ended by itself."""
        self.called(attempt, now)
        self.stopped(attempt)

    def stopped(self, attempt: int) -> None:
        """An attempt was ended from outside, or need not start any more; nothing is learnt."""
        if attempt in self._waiting:
            self._waiting.remove(attempt)
        self._starting.pop(attempt, None)
        self._running.discard(attempt)

    def see(self, attempt: int, now: float, used: Used | None) -> None:
        """Look at an attempt that starts: its use so far; None: it cannot be seen."""
        if (start := self._starting.get(attempt)) is None:
            return
        if used is not None:
            self._bytes = max(self._bytes, used.bytes)
            if start.used is None or used.wants or not _idle(start.used, used, now - start.seen):
                start.quiet_since = now
            start.used, start.seen = used, now
            if now - start.quiet_since >= QUIET_S:
                self._run(attempt)
                self._learn(start, start.quiet_since - start.since)
                return
        if (used is not None and used.cpu_s >= CPU_S) or now - start.since >= LONGEST_S:
            self._run(attempt)

    def crowd(self, wanting: int) -> None:
        """So many of the attempts that run want a core now."""
        self._wanting = wanting

    def state(self, attempt: int) -> StartState | None:
        """The state of an attempt; None if it has ended."""
        if attempt in self._starting:
            return "starting"
        if attempt in self._running:
            return "running"
        return "waiting" if attempt in self._waiting else None

    @property
    def starting(self) -> list[int]:
        """The attempts that start."""
        return list(self._starting)

    @property
    def running(self) -> list[int]:
        """The attempts that run."""
        return list(self._running)

    @property
    def counts(self) -> StartCounts:
        """Count the attempts that wait and start; a start took so many seconds, of late."""
        took = sorted(self._took)
        return StartCounts(
            waiting=len(self._waiting),
            starting=len(self._starting),
            most=int(self._limit),
            seconds=took[len(took) // 2] if took else 0.0,
        )

    def _run(self, attempt: int) -> None:
        del self._starting[attempt]
        self._running.add(attempt)
        self._wanting += 1  # until the next look

    def _learn(self, start: _Start, took_s: float) -> None:
        """Let the bounds follow from a start."""
        self._took.append(took_s)
        needed = start.used.bytes if start.used is not None else 0
        self._bytes = max(START_BYTES, needed, int(LESS * self._bytes))
        waited = _waited(start.used, took_s, min(self._took))
        if waited < GROW and self._waiting:
            self._limit = min(self._most, self._limit + 1 / self._limit)
        elif waited > SHRINK and start.round == self._round:
            self._limit = max(1.0, self._limit * LESS)
            self._round += 1  # those that began before know nothing of it yet


def _idle(before: Used, used: Used, seconds: float) -> bool:
    """True if hardly any processor was used for so many seconds. Less than before means that a
    process has ended, which is activity."""
    return 0 <= used.cpu_s - before.cpu_s <= IDLE * seconds


def _waited(used: Used | None, took_s: float, quickest_s: float) -> float:
    """The share of its time for which a start waited for a core, 0 to 1."""
    if used is not None and used.waited_s is not None:
        wanted_s = used.cpu_s + used.waited_s
        return used.waited_s / wanted_s if wanted_s > 0 else 0.0
    return 1 - quickest_s / took_s if took_s > 0 else 0.0
