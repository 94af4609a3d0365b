"""Looks at the clock once a second, whatever else happens.

Invariant: nothing lasts too long unnoticed, and no actor is blamed for what the coordinator itself
has not read.

    deadlines of leases, publications and verdicts → the deadline of the run's phase
      → metrics → the launcher's status
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from actors.coordinator.collect_status import collect_status, collect_update
from actors.coordinator.components import Components
from asyncrl.observe.diagnosis import diagnose, listed
from asyncrl.observe.metrics import observe

TICK_S = 1.0
LATE_S = 1.0
"""A tick that is late by so many seconds blames nobody: the coordinator itself stood still, and
messages that came meanwhile are not read yet."""

Replace = Callable[[str, str], None]
"""`replace(actor, reason)` has an actor ended and another one started."""


async def tick(parts: Components, replace: Replace) -> None:
    """Look every second until cancelled."""
    now, stuck = trio.current_time(), False
    while True:
        due = now + TICK_S
        await trio.sleep_until(due)
        now = trio.current_time()
        before, stuck = stuck, bool(parts.journal_status().trouble)
        # while the journal has no room for events, the actors that bring them are not read
        if now < due + LATE_S and not (before or stuck):
            _end_what_is_late(parts, now, replace)
            _watch(parts, now)
        parts.statistics.tick(parts.store.experience.ledger.tokens)
        _measure(parts)
        update = collect_update(parts)
        for launcher in parts.roster.of("launcher"):
            launcher.send(update)
        parts.changes.set()


def _end_what_is_late(parts: Components, now: float, replace: Replace) -> None:
    for engine in parts.reclaiming.expire(now, parts.chunks.streamed):
        replace(engine, "it streamed nothing in the whole time of a lease")
    parts.publishing.late(now)
    if (name := parts.scoring.overdue(now)) is not None:
        replace(name, "it owes a verdict for too long")


def _watch(parts: Components, now: float) -> None:
    """End a run whose phase lasts too long, with the cause as the reason; its status is kept as it
    is then."""
    last_activity = max(
        parts.chunks.last_activity,
        parts.scoring.last_activity,
        parts.stepping.last_activity if parts.stepping else 0.0,
    )
    late = parts.lifecycle.late(last_activity, now)
    if late is None or parts.outcome is not None:
        return
    found = collect_status(parts)
    parts.stalled(found)
    supervision = parts.config.supervision
    if late.missing:
        missing = listed(late.missing)
        what = f"{missing} did not come within {supervision.start_s:g} s (supervision.start_s)"
    else:
        what = f"no token and no step for {supervision.stall_s:g} s (supervision.stall_s)"
    cause = diagnose(found).rstrip(".")
    parts.end(False, f"{what}: {cause[0].lower()}{cause[1:]}")


def _measure(parts: Components) -> None:
    """Give the metrics those numbers that are not counted where they change."""
    metrics, times, journal = parts.metrics, parts.leases.times, parts.journal_status()
    lags = parts.stepping.lags if parts.stepping else {}
    metrics.observed(observe(parts.store.experience, lags))
    metrics.leasing(times.p95_s, times.deadline_s)
    metrics.journalled(journal.disk_bytes, journal.pending_bytes)
    metrics.pumped(parts.statistics.pump_s)
