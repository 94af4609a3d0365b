"""What a coordinator does every second, whatever else happens. Invariant: nothing lasts too long
unnoticed, and nobody is blamed for what the coordinator itself has not read.

    deadlines of leases, publications, verdicts, and of the phase that the run is in (the watchdog) → metrics → the launcher's status
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from actors.coordinator.lifecycle import Phase
from asyncrl.observe.diagnosis import diagnose, listed
from asyncrl.observe.metrics import observe

if TYPE_CHECKING:
    from actors.coordinator.coordinator import Coordinator

TICK_S = 1.0
LATE_S = 1.0
"""A tick that comes so much too late finds unread what came meanwhile, and blames nobody: the
coordinator itself stood still."""


async def tick(run: Coordinator) -> None:
    """Do it until cancelled."""
    now, stuck = trio.current_time(), False
    while True:
        due = now + TICK_S
        await trio.sleep_until(due)
        now = trio.current_time()
        before, stuck = stuck, bool(run.journal().trouble)
        if now < due + LATE_S and not (
            before or stuck
        ):  # who brings events is not read while the journal has no room for them
            _end_what_is_late(run, now)
        run.progress.tick(run.store.experience.ledger.tokens)
        _measure(run)
        status = run.progress.status(run, *_phase(run))
        for peer in run.roster.of("launcher"):
            peer.send(status)
        run.pulse.set()


def _end_what_is_late(run: Coordinator, now: float) -> None:
    for engine in run.generation.expire(now):
        run.replace(engine, "it streamed nothing in the whole time of a lease")
    run.publishing.late(now)
    if (name := run.scoring.overdue(now)) is not None:
        run.replace(name, "it owes a verdict for too long")
    _watch(run, now)


def _watch(run: Coordinator, now: float) -> None:
    """The watchdog: a phase that lasts too long is written down as it stands, and ends the run by
    the name of who it waits for."""
    progress = max(
        run.generation.progress,
        run.scoring.progress,
        run.training.progress if run.training else 0.0,
    )
    late = run.life.late(progress, now)
    if late is None or run.outcome is not None:
        return
    found = run.status()
    run.stalled(found)
    if late.missing:
        what = (
            f"{listed(late.missing)} did not come within {run.config.supervision.start_s:g} "
            "s (supervision.start_s)"
        )
    else:
        what = (
            f"no token and no step for {run.config.supervision.stall_s:g} s (supervision.stall_s)"
        )
    cause = diagnose(found).rstrip(".")
    run.end(False, f"{what}: {cause[0].lower()}{cause[1:]}")


def _measure(run: Coordinator) -> None:
    """Let the metrics have what is not counted where it happens."""
    metrics, times, journal, training = (
        run.metrics,
        run.generation.out.times,
        run.journal(),
        run.training,
    )
    metrics.observed(observe(run.store.experience, training.lags if training else {}))
    metrics.leasing(times.p95_s, times.deadline_s)
    metrics.journalled(journal.disk_bytes, journal.pending_bytes)
    metrics.pumped(run.progress.pump_s)


def _phase(run: Coordinator) -> tuple[str, str]:
    """What the run is doing, in a word, and whom it waits for where that is not a moment's
    matter."""
    match run.life.phase:
        case Phase.INIT:
            return "starting", f"waiting for {listed(run.life.missing)}"
        case Phase.READY:
            return "starting", f"publishing version {run.training.version if run.training else 0}"
        case Phase.RUN:
            if run.training is not None and run.training.finished:
                return (
                    "finishing",
                    "evaluating the last version" if run.evaluation.running is not None else "",
                )
            return "training", ""
        case _:
            return "draining", ""
