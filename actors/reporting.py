"""An actor's report of itself, about once a second.

Invariant: every second and every count is reported once. A trainer's current command, and a
checkpoint that it writes beside it, are in each report until done, so a slow trainer differs from
one that hangs or is stopped, which reports nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from asyncrl.config import Config
from asyncrl.messages import Busy, Command, Report, StartCounts
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.processes.standstill import RunClock

REPORT_S = 1.0
"""Seconds between two reports of an actor, at least."""
REPORTS_PER_S = 16
"""Reports that all rollout and reward actors together send in a second, at most."""


def report_s(config: Config) -> float:
    """Seconds between two reports of a rollout or reward actor. Example: 48 actors report every
    3 s each."""
    return max(REPORT_S, (config.rollout.actors + config.reward.actors) / REPORTS_PER_S)


class Reporter:
    """Collects idle seconds and counts, and sends their increase."""

    def __init__(self, waits: Waits, every_s: float = REPORT_S) -> None:
        self._waits = waits
        self._every_s = every_s
        self._counts: Counter[str] = Counter()
        self._sent: dict[str, float] = {}
        self._since = trio.current_time()
        self._clock = RunClock()
        self._command: Command | None = None
        self._command_since = self._clock.now()
        self._saving_since: float | None = None
        self._totals: dict[str, Callable[[], float]] = {}
        self._told: dict[str, float] = {}
        self.starts: Callable[[], StartCounts | None] = lambda: None
        """Counts the starts of agents' programs; None where there are none."""

    def busy_with(self, command: Command | None) -> None:
        """Note the start of work on `command`; None: it is done."""
        self._command, self._command_since = command, self._clock.now()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Note that a checkpoint is written during the block."""
        self._saving_since = self._clock.now()
        try:
            yield
        finally:
            self._saving_since = None

    def count(self, name: str, increase: float = 1.0) -> None:
        """Add to a counter. Its name is a metric's label, so take few different ones."""
        self._counts[name] += increase  # type: ignore[assignment]

    def follow(self, name: str, total: Callable[[], float]) -> None:
        """Count what another part of the process counts: `total`, which only grows."""
        self._totals[name], self._told[name] = total, 0.0

    def take(self) -> Report:
        """The report of everything since the last call."""
        now, clock_now = trio.current_time(), self._clock.now()
        total = self._waits.idle()
        idle = {cause: seconds - self._sent.get(cause, 0.0) for cause, seconds in total.items()}
        for name, counted in self._totals.items():
            if (much := counted()) > self._told[name]:
                self.count(name, much - self._told[name])
                self._told[name] = much
        counts, self._counts = self._counts, Counter()
        seconds, self._since, self._sent = now - self._since, now, total
        busy = (
            None if self._command is None else Busy(self._command, clock_now - self._command_since)
        )
        saving_s = None if self._saving_since is None else clock_now - self._saving_since
        return Report(
            seconds, idle, dict(counts), self._waits.table(), busy, saving_s, self.starts()
        )

    async def run(self, link: Link) -> None:
        """Report until cancelled."""
        while True:
            await self._clock.sleep_until(trio.current_time() + self._every_s)
            await link.send(self.take())
