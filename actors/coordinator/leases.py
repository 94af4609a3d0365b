"""The leases that are out, and the deadline of each.

Invariant: a deadline is `MULTIPLE` times the 95th percentile of the seconds that leases took, but
at least `FLOOR_S` and at most `rollout.lease_s`. Until `ENOUGH` leases have ended it is
`rollout.lease_s`.

A lease that runs out although it streamed counts as one that took its whole time. If more than one
in twenty runs out, the percentile is therefore a deadline, and the next deadlines are `MULTIPLE`
times longer. So longer rollouts, and slower engines, are interrupted only for a while. A lease that
streamed nothing is not counted, so an engine that hangs does not lengthen later deadlines.
Standstills of the coordinator do not count.

Example: 100 leases took 1 to 100 s, one each. The percentile is 95 s, and the next lease gets 380 s
if `rollout.lease_s` allows it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque

import msgspec

WINDOW = 1000
"""Ended leases that are remembered."""
ENOUGH = 100
"""The fewest ended leases for a meaningful percentile: five of them are beyond it."""
MULTIPLE = 4.0
FLOOR_S = 30.0
"""A publication, a compiled kernel or a busy machine may delay any engine for seconds."""


class LeaseTimes:
    """A running percentile of how long leases take, in seconds from lease to seal."""

    def __init__(self, max_s: float) -> None:
        """`max_s` is the most seconds that a lease may last (`rollout.lease_s`)."""
        self._max_s = max_s
        self._recent: deque[float] = deque()  # in the order they came
        self._sorted: list[float] = []

    def took(self, seconds: float) -> None:
        """Record a lease that ended after this many seconds (at least 0)."""
        self._recent.append(seconds)
        insort(self._sorted, seconds)
        if len(self._recent) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    @property
    def p95_s(self) -> float | None:
        """The 95th percentile of the last `WINDOW` leases, in seconds: at least 95 % of them took
        no longer. None before `ENOUGH` have ended."""
        count = len(self._sorted)
        return self._sorted[-(-count * 95 // 100) - 1] if count >= ENOUGH else None

    @property
    def deadline_s(self) -> float:
        """Seconds of the next lease."""
        p95_s = self.p95_s
        return self._max_s if p95_s is None else min(self._max_s, max(FLOOR_S, MULTIPLE * p95_s))


class ActiveLease(msgspec.Struct, frozen=True):
    """A lease: its `number` in the order of giving, the rollout's `attempt`, its beginning `since`
    and its `deadline` (seconds on the run's clock), the `tokens` that the rollout had at its
    beginning, the `version` that it is pinned to (None: to none), and the version that its engine
    `served` then."""

    number: int
    attempt: int
    since: float
    deadline: float
    tokens: int
    version: int | None
    served: int | None


class LeaseTable:
    """The leases that are out, by rollout. The cost of `over` is that of its result."""

    def __init__(self, max_s: float) -> None:
        self.times = LeaseTimes(max_s)
        self._held: dict[int, ActiveLease] = {}
        self._given = 0
        # a heap of (deadline, rollout, attempt); leases that are over already are in it too
        self._order: list[tuple[float, int, int]] = []

    def give(
        self,
        rollout: int,
        attempt: int,
        tokens: int,
        now: float,
        version: int | None = None,
        served: int | None = None,
    ) -> None:
        """Lease a rollout that has this many `tokens`, pinned to `version` unless it is None, to an
        engine that decodes with the version `served`."""
        deadline = now + self.times.deadline_s
        self._given += 1
        self._held[rollout] = ActiveLease(
            self._given, attempt, now, deadline, tokens, version, served
        )
        heapq.heappush(self._order, (deadline, rollout, attempt))

    def of(self, rollout: int) -> ActiveLease:
        """The lease of a rollout. Raises KeyError if it is not leased."""
        return self._held[rollout]

    def back(self, rollout: int) -> None:
        """End the lease of a rollout, if it has one."""
        self._held.pop(rollout, None)

    def over(self, now: float) -> list[int]:
        """The rollouts whose leases have run out by `now`, the earliest deadline first. Each is
        named once."""
        over = []
        while self._order and self._order[0][0] <= now:
            _, rollout, attempt = heapq.heappop(self._order)
            held = self._held.get(rollout)
            if held is not None and held.attempt == attempt:
                over.append(rollout)
        return over

    def oldest(self, count: int) -> list[tuple[int, ActiveLease]]:
        """At most `count` rollouts and their leases, the oldest lease first."""
        return heapq.nsmallest(count, self._held.items(), key=lambda item: item[1].since)
