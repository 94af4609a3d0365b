"""Watches the disk of a run: whether checkpoints and the journal can be written, and how long the
run waits for it. Invariant: a failed write is reported at once, and bounds the work at stake.
"""

from __future__ import annotations

from asyncrl.actors.coordinator.components import Components
from asyncrl.explain.conditions.condition import RunFacts
from asyncrl.explain.conditions.disks import RESUMES


def look_outside(parts: Components) -> None:
    """Raise or end the alarms of the disk, of the judge and of the last rollouts' outcomes."""
    unwritten, why = unwritten_checkpoints(parts)
    facts = RunFacts(
        unwritten=unwritten,
        unwritten_why=why,
        journal_why=parts.journal_status().trouble,
        judge_missed=parts.scoring.judge.missed,
        judge_why=parts.scoring.judge.why,
        recent=parts.store.outcomes.recent.alarming,
    )
    if parts.outside_alarms.look(facts):
        parts.metrics.alarmed(alarm.name for alarm in parts.alarms)


def unwritten_checkpoints(parts: Components) -> tuple[int, str]:
    """The number of failed checkpoints in a row, and the reason for the last."""
    if parts.stepping is None:
        return 0, ""
    checkpoints = parts.stepping.checkpoints
    return checkpoints.unwritten, checkpoints.unwritten_why


def given_up(parts: Components, now: float) -> str:
    """The sentence with which a run ends if no checkpoint could be written for too long; empty
    while it continues."""
    if parts.stepping is None or not parts.stepping.checkpoints.given_up(now):
        return ""
    unwritten, why = unwritten_checkpoints(parts)
    return (
        f"the last {unwritten} checkpoints were not written, and none in the last "
        f"{parts.config.supervision.stall_s:g} s (supervision.stall_s), because {why}, {RESUMES}"
    )
