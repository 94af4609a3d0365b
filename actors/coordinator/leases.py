"""How long a lease lasts, and which have lasted too long. Invariant: a deadline is `MULTIPLE` times
the 95th percentile of what leases took, never under `FLOOR_S` nor over `rollout.lease_s`, which is
what holds until `ENOUGH` leases have ended.

A lease that runs out although it streamed counts as one that took as long as it was given. So where
more than one in twenty runs out, the percentile is a deadline, and the next deadlines are
`MULTIPLE` times longer: responses that have become longer, or engines that have become slower, are
not cut to pieces for long. What hangs is not counted, and makes nobody wait longer.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque

import msgspec

WINDOW = 1000
"""Ended leases that are remembered."""
ENOUGH = 100
"""Ended leases from which a percentile means something: five of them are beyond it."""
MULTIPLE = 4.0
FLOOR_S = 30.0
"""A publication, a compiled kernel or a busy machine may hold up any engine for seconds."""


class LeaseTimes:
    """A running percentile of how long leases take, in seconds from lease to seal."""

    def __init__(self, max_s: float) -> None:
        """`max_s` is the longest that a lease may last: `rollout.lease_s`."""
        self._most_s = max_s
        self._recent: deque[float] = deque()  # in the order they came
        self._sorted: list[float] = []

    def took(self, seconds: float) -> None:
        """A lease ended after so many seconds (at least 0)."""
        self._recent.append(seconds)
        insort(self._sorted, seconds)
        if len(self._recent) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    @property
    def p95_s(self) -> float | None:
        """The 95th percentile of the last `WINDOW`: at least 95 % of them took no longer. None
        before `ENOUGH` have ended."""
        count = len(self._sorted)
        return self._sorted[-(-count * 95 // 100) - 1] if count >= ENOUGH else None

    @property
    def deadline_s(self) -> float:
        """What the next lease is given."""
        p95_s = self.p95_s
        return self._most_s if p95_s is None else min(self._most_s, max(FLOOR_S, MULTIPLE * p95_s))


class ActiveLease(msgspec.Struct, frozen=True):
    """A lease: its `number` in the order of giving, the rollout's `attempt`, `since` when (trio's
    clock), until which `deadline`, the `tokens` that there were at its beginning, and the `version`
    that it is pinned to, None where it is to none."""

    number: int
    attempt: int
    since: float
    deadline: float
    tokens: int
    version: int | None


class LeaseTable:
    """The leases that are out. `over` costs what it returns."""

    def __init__(self, max_s: float) -> None:
        self.times = LeaseTimes(max_s)
        self._held: dict[int, ActiveLease] = {}
        self._given = 0
        self._order: list[
            tuple[float, int, int]
        ] = []  # a heap of (deadline, rollout, attempt); those given back meanwhile are in it too

    def give(
        self, rollout: int, attempt: int, tokens: int, now: float, version: int | None = None
    ) -> None:
        """A rollout that holds so many tokens is leased, pinned to `version` where that is one."""
        deadline = now + self.times.deadline_s
        self._given += 1
        self._held[rollout] = ActiveLease(self._given, attempt, now, deadline, tokens, version)
        heapq.heappush(self._order, (deadline, rollout, attempt))

    def of(self, rollout: int) -> ActiveLease:
        """A rollout's lease. Raises KeyError where it is not leased."""
        return self._held[rollout]

    def back(self, rollout: int) -> None:
        """The lease is over, if there was one."""
        self._held.pop(rollout, None)

    def over(self, now: float) -> list[int]:
        """The rollouts whose leases have run out, the earliest first; each is named once."""
        found = []
        while self._order and self._order[0][0] <= now:
            _, rollout, attempt = heapq.heappop(self._order)
            held = self._held.get(rollout)
            if held is not None and held.attempt == attempt:
                found.append(rollout)
        return found

    def oldest(self, most: int) -> list[tuple[int, ActiveLease]]:
        """At most so many leases, the oldest first."""
        return heapq.nsmallest(most, self._held.items(), key=lambda item: item[1].since)
