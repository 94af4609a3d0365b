"""Waits of processes. Invariant: each has a name and an owner, and ends within its bound."""

from __future__ import annotations

from asyncrl.runtime.ipc.waits import Waits
from asyncrl.simulation.checker.checked_run import CheckedRun


class WaitWitness:
    """Watches the waits of all processes, through all lives."""

    def __init__(self, run: CheckedRun) -> None:
        self._run = run
        # when each wait was first seen to be over its bound
        self._overdue: dict[tuple[str, str, str, float], float] = {}

    def look(self, name: str, waits: Waits) -> None:
        """Check those of the process of that name."""
        now = self._run.clock()
        for wait in waits.table():
            seconds = wait.bound if isinstance(wait.bound, float) else None
            bounded = bool(wait.bound) if seconds is None else 0 < seconds < float("inf")
            named = bool(wait.name and wait.owner)
            self._run.hold("waits", named and bounded, "{} has the wait {}", name, wait)
            # It ends as soon as its task runs; until then the time does not change.
            if seconds is not None and wait.seconds > seconds:
                key = name, wait.name, wait.owner, round(now - wait.seconds, 6)
                ends = self._overdue.setdefault(key, now) == now
                self._run.hold("waits", ends, "{} has the wait {}", name, wait)
