"""Counts for people: the seconds of a run, its rates, and the idle shares of its actors."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from typing import NamedTuple

import trio

from asyncrl.actors.coordinator.peers import Peer
from asyncrl.experience.ledger import Account
from asyncrl.messages import Report, Role

WINDOW_S = 10.0
"""Rates and recent shares are over this many seconds."""

IDLE: dict[Role, tuple[str, ...]] = {"trainer": ("command",), "rollout": ("requests", "weights")}
"""The waits that count as idle time of a role."""


class _Mark(NamedTuple):
    """The counts at the time `at`: tokens, reported seconds by role, and idle seconds by role and
    cause."""

    at: float
    generated: int
    trained: int
    seconds: Mapping[Role, float]
    idle: Mapping[tuple[Role, str], float]


class RunStatistics:
    """Seconds, rates and idle shares of a run that began now."""

    def __init__(self) -> None:
        self.began = trio.current_time()
        self._marks: deque[_Mark] = deque()
        self._idle: defaultdict[tuple[Role, str], float] = defaultdict(float)
        self._seconds: defaultdict[Role, float] = defaultdict(float)
        self._pump_s = 0.0
        self.pump_s = 0.0
        """Seconds of machine time of the longest pass of the coordinator's loop in the last
        second."""
        self.restarts: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """Sums of what agents actors count (`Report.counts`), by name."""

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return trio.current_time() - self.began

    def on_report(self, peer: Peer, report: Report, working: bool) -> None:
        """Count an actor's report of its last second. It is not counted before the run is
        `working`, because idle time has no meaning then, nor for a lent engine, which is closed for
        much of its time."""
        peer.report = report
        if peer.role == "agents" and report.counts:
            self.counts.update(report.counts)
        if not working:
            return
        self._seconds[peer.role] += report.seconds
        for cause in IDLE.get(peer.role, ()):
            self._idle[peer.role, cause] += report.idle.get(cause, 0.0)

    def pumped(self, seconds: float) -> None:
        """A pass of the coordinator's loop took so long."""
        self._pump_s = max(self._pump_s, seconds)

    def tick(self, tokens: Account) -> None:
        """A second is over."""
        self.pump_s, self._pump_s = self._pump_s, 0.0
        now = trio.current_time()
        self._marks.append(
            _Mark(now, tokens.total, tokens.trained, dict(self._seconds), dict(self._idle))
        )
        while now - self._marks[0].at > WINDOW_S and len(self._marks) > 2:
            self._marks.popleft()

    @property
    def window_s(self) -> float:
        """Seconds over which rates and recent shares are, at most `WINDOW_S`; 0 before the second
        tick."""
        return self._marks[-1].at - self._marks[0].at if self._marks else 0.0

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens generated and trained per second in the last `window_s`."""
        if not (span := self.window_s):
            return 0.0, 0.0
        first, last = self._marks[0], self._marks[-1]
        return (last.generated - first.generated) / span, (last.trained - first.trained) / span

    def recent(self) -> dict[Role, Mapping[str, float]]:
        """Idle shares in the last `window_s`, 0 to 1, by role and cause. Roles that have not
        reported are left out."""
        if not self._marks:
            return {}
        first, last = self._marks[0], self._marks[-1]
        before, idle = first.seconds, first.idle
        spans = {role: total - before.get(role, 0.0) for role, total in last.seconds.items()}
        return {
            role: {
                cause: min(1.0, (last.idle[role, cause] - idle.get((role, cause), 0.0)) / span)
                for cause in IDLE.get(role, ())
            }
            for role, span in spans.items()
            if span
        }

    def idle(self, role: Role) -> float | None:
        """Share of a role's seconds in which it was idle, 0 to 1; None before its first report."""
        idle = sum(self._idle.get((role, cause), 0.0) for cause in IDLE.get(role, ()))
        seconds = self._seconds.get(role)
        return idle / seconds if seconds else None
