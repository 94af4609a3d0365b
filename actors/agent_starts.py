"""Starts of agents' programs in this process, and of what agents open outside
(`agent_openings.py`): attempts wait here until `StartLimit` lets them start.

Invariant: an attempt that waits starts in bounded time, whatever those before it do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from asyncrl.actors.start_limit import StartLimit
from asyncrl.messages import StartCounts
from asyncrl.runtime.ipc.waits import Pulse, Waits
from asyncrl.runtime.processes.machine import available_cores, free_bytes
from asyncrl.runtime.processes.usage import Used, used_by

POLL_S = 0.25
"""Seconds between two looks at the attempts that start, and at some that run, while any start or
wait."""
SAMPLE = 8
"""Attempts that run of which one look takes, each time others."""


class AgentStart:
    """One attempt that may start now. Its processes descend from `pid`, once that is known."""

    def __init__(self, called: Callable[[], None]) -> None:
        self.pid: int | None = None
        self.called = called
        """Note that its first request has come."""


class AgentStarts:
    """All attempts of one actor. `run` must run beside them."""

    def __init__(
        self,
        limit: StartLimit,
        waits: Waits,
        look: Callable[[int], Used | None] = used_by,
        free: Callable[[], int] = free_bytes,
    ) -> None:
        self._limit, self._waits, self._look, self._free = limit, waits, look, free
        self._attempts = 0
        self._admitted: dict[int, trio.Event] = {}
        self._starts: dict[int, AgentStart] = {}
        self._busy, self._turn = Pulse(), 0

    @property
    def counts(self) -> StartCounts:
        """Count the attempts that wait and start."""
        return self._limit.counts

    @asynccontextmanager
    async def start(self, owner: str) -> AsyncIterator[AgentStart]:
        """Wait until an attempt may start, which lives in the block and ends with it."""
        attempt, self._attempts = self._attempts, self._attempts + 1
        admitted = self._admitted[attempt] = trio.Event()
        ended = False
        try:
            self._limit.wait(attempt)
            self._busy.set()
            self._pump()
            with self._waits.until("those before it have started", "a start", owner=owner):
                await admitted.wait()
            start = self._starts[attempt] = AgentStart(lambda: self._called(attempt))
            yield start
            ended = True
        finally:
            del self._admitted[attempt]
            self._starts.pop(attempt, None)
            if ended:
                self._limit.ended(attempt, trio.current_time())
            else:
                self._limit.stopped(attempt)
            self._pump()

    async def run(self) -> None:
        """Look at attempts that start, and at some that run, until cancelled."""
        while True:
            if not self._limit.starting and not self._limit.counts.waiting:
                await self._busy.wait()
            await trio.sleep(POLL_S)
            now = trio.current_time()
            for attempt in self._limit.starting:
                start = self._starts.get(attempt)
                pid = None if start is None else start.pid
                self._limit.see(attempt, now, None if pid is None else self._look(pid))
            self._limit.crowd(self._wanting())
            self._pump()

    def _wanting(self) -> int:
        """Estimate how many of the attempts that run want a core, by a few of them."""
        running = [
            start.pid
            for attempt in self._limit.running
            if (start := self._starts.get(attempt)) is not None and start.pid is not None
        ]
        if not running:
            return 0
        turn, self._turn = self._turn % len(running), self._turn + SAMPLE
        sample = (running[turn:] + running[:turn])[:SAMPLE]
        wanting = sum((used := self._look(pid)) is not None and used.wants for pid in sample)
        return round(len(running) * wanting / len(sample))

    def _called(self, attempt: int) -> None:
        self._limit.called(attempt, trio.current_time())
        self._pump()

    def _pump(self) -> None:
        """Let those start that may."""
        for attempt in self._limit.due(trio.current_time(), self._free()):
            self._admitted[attempt].set()


def starts_of(waits: Waits, actors: int = 1) -> AgentStarts:
    """The starts of an agents actor, of which so many `actors` share the cores."""
    return AgentStarts(StartLimit(max(1, available_cores() // actors)), waits)
