"""Looks at the clock once a second, whatever else happens.

Invariant: nothing lasts too long unnoticed, and no actor is blamed for what the coordinator itself
has not read.

    the coordinator itself stood still, or could not read → nothing is judged; the run's clock has
      stopped for as long (`RunClock`)
    deadlines of leases, publications, verdicts, checkpoints and the trainer's work → the deadline
      of the run's phase → the disk → metrics → the launcher's status

What has a deadline of its own is no stall before that: a trainer that reports what it is busy with
or that it writes a checkpoint, a publication that is under way, a verdict that is owed.
"""

from __future__ import annotations

import logging

import msgspec
import trio

from asyncrl.actors.coordinator.carry_out import Replace, carry_out
from asyncrl.actors.coordinator.collect_progress import under_way
from asyncrl.actors.coordinator.collect_status import collect_status, collect_update
from asyncrl.actors.coordinator.components import Components
from asyncrl.actors.coordinator.disk_watch import given_up, look_outside
from asyncrl.actors.coordinator.lifecycle import OverduePhase, Phase
from asyncrl.explain.diagnosis import diagnose, listed
from asyncrl.explain.metrics import observe
from asyncrl.messages import Busy, Healable
from asyncrl.runtime.processes.standstill import TICK_S

logger = logging.getLogger(__name__)

SILENT_S = 60.0
"""Seconds of silence after which an agents actor that has episodes is replaced. It reports each
second, so it hangs, or its link is dead."""


async def tick(parts: Components, replace: Replace) -> None:
    """Look every second until cancelled."""
    clock, woke = parts.clock, trio.current_time()
    excused = clock.now()  # when an actor last had time of its own, which does not count as silence
    stuck = unread = False
    measured: int | None = None  # the last event that the metrics know of
    while True:
        # a journal without room for events: the actors that bring them are not read
        stopped = unread and not parts.lifecycle.ending
        stood = await clock.sleep_until(woke + TICK_S, stopped=stopped)
        woke, now = trio.current_time(), clock.now()
        before, stuck = stuck, bool(parts.journal_status().trouble)
        unread = before or stuck
        if not (stood or unread):
            if parts.publishing.busy or parts.playing.thinking:  # bounded where they run
                excused = now
            _end_what_is_late(parts, now, replace)
            _watch(parts, excused, now)
        look_outside(parts)
        parts.statistics.tick(parts.store.experience.ledger.tokens)
        if parts.store.cursor != measured:
            measured = parts.store.cursor
            lags = parts.stepping.lags if parts.stepping else {}
            parts.metrics.observed(observe(parts.store.experience, lags))
        _measure(parts)
        parts.underway.look(under_way(parts), now)
        # one that is stopped is told later how the run stands then
        if takers := [peer for peer in parts.roster.of("launcher") if peer.has_room()]:
            update = collect_update(parts)
            for launcher in takers:
                launcher.send(update)
        parts.changes.set()


def _end_what_is_late(parts: Components, now: float, replace: Replace) -> None:
    for engine in parts.reclaiming.expire(now, parts.chunks.streamed):
        replace(engine, "it streamed nothing in the whole time of a lease")
    carry_out(parts, parts.publishing.late(now), replace)
    if (name := parts.scoring.overdue(now)) is not None:
        replace(name, "it owes a verdict for too long")
    for peer in parts.roster.of("agents"):
        if now - peer.last_message > SILENT_S and parts.playing.held(peer.name):
            replace(peer.name, f"it has episodes, and said nothing for {SILENT_S:g} s")


def _watch(parts: Components, excused: float, now: float) -> None:
    """End a run whose phase, or whose trainer's work, lasts too long, with the cause as the reason;
    its status is kept as it is then."""
    if parts.outcome is not None or parts.lifecycle.ending:
        return
    if what := given_up(parts, now):
        parts.end(False, what)
        return
    if what := _too_long_at_work(parts):
        _stall(parts, what, heals="stalled")
        return
    late = parts.lifecycle.late(max(excused, _last_activity(parts)), now)
    if late is None:
        return
    if late.phase is Phase.INIT and parts.lifecycle.quorum:
        names = listed(parts.lifecycle.begin_without(now))
        logger.warning("the run begins without %s, which did not come in time", names)
        return
    _stall(parts, _overdue(parts, late), heals=None if late.missing else "stalled")


def _last_activity(parts: Components) -> float:
    """The moment at which something was known to go on last. The time that a verdict which is owed
    may take lies beyond it."""
    last = max(parts.chunks.last_activity, parts.scoring.last_activity, parts.playing.last_activity)
    if (stepping := parts.stepping) is not None:
        report = stepping.trainer.report
        at_work = report.busy is not None or report.saving_s is not None
        last = max(last, stepping.last_activity, stepping.trainer.last_message if at_work else 0.0)
    return last + parts.scoring.patience_s if parts.scoring.pending else last


def _too_long_at_work(parts: Components) -> str:
    """Say what the trainer is at for longer than it may; empty if there is nothing."""
    if parts.stepping is None:
        return ""
    report, supervision = parts.stepping.trainer.report, parts.config.supervision
    written = [] if report.saving_s is None else [Busy("checkpoint", report.saving_s)]
    for busy in [*written, *([] if report.busy is None else [report.busy])]:
        name, limit_s = (
            ("checkpoint_s", supervision.checkpoint_s)
            if busy.command == "checkpoint"
            else ("compute_s", supervision.compute_s)
        )
        if busy.seconds >= limit_s:
            return f"the trainer is at one {busy.command} for {limit_s:g} s (supervision.{name})"
    return ""


def _overdue(parts: Components, late: OverduePhase) -> str:
    supervision = parts.config.supervision
    if late.missing:
        missing = listed(late.missing)
        return f"{missing} did not come within {supervision.start_s:g} s (supervision.start_s)"
    return f"no token and no step for {supervision.stall_s:g} s (supervision.stall_s)"


def _stall(parts: Components, what: str, *, heals: Healable | None = None) -> None:
    status = msgspec.structs.replace(collect_status(parts), reason=what)
    parts.stalled(status)
    cause = diagnose(status).rstrip(".")
    parts.end(False, f"{what}: {cause[0].lower()}{cause[1:]}", heals=heals)


def _measure(parts: Components) -> None:
    """Give the metrics those numbers that are not counted where they change."""
    metrics, times, journal = parts.metrics, parts.leases.times, parts.journal_status()
    metrics.leasing(times.p95_s, times.deadline_s)
    metrics.journalled(journal.disk_bytes, journal.pending_bytes)
    metrics.pumped(parts.statistics.pump_s)
    if (lending := parts.lent.status(parts.clock.now())) is not None:
        metrics.lending(lending.worth, lending.used_s, lending.cost_s)
    if parts.config.agent.run:
        episodes = parts.playing.counts
        metrics.playing(episodes.live, episodes.thinking, episodes.most)
