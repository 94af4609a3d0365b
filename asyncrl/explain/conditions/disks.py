"""Disks that do not take what a run must keep: a checkpoint, or the journal. The run goes on for a
while, so its user has the time to make room.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts

UNWRITTEN = 0.0
"""Checkpoints in a row that may be missing."""
HOLDS = 2
"""Checkpoints in a row that were not written, from which on nothing new is admitted: one may have
met a disk that was full for a moment."""
RESUMES = "and resume the run"
"""The end of a sentence of a run that ended because of its disk, after the remedy."""


def _unwritten(facts: RunFacts, limit: float) -> Iterator[Finding]:
    if facts.unwritten <= limit:
        return
    last = (
        "The last checkpoint was"
        if facts.unwritten == 1
        else f"The last {facts.unwritten} checkpoints were"
    )
    then = (
        "if the next one is not written either, nothing new is admitted"
        if facts.unwritten < HOLDS
        else "nothing new is admitted until one is, and the run ends if that takes too long"
    )
    yield Finding(
        "checkpoint_unwritten", f"{last} not written to run.dir: {facts.unwritten_why}; {then}."
    )


def _journal_waits(facts: RunFacts, limit: float) -> Iterator[Finding]:
    if bool(facts.journal_why) > limit:
        yield Finding(
            "journal_waits",
            f"The journal in run.dir waits for the disk, and everything else for the journal: "
            f"{facts.journal_why}; otherwise the run ends.",
        )


DISKS = (
    Condition(
        names=("checkpoint_unwritten",),
        measures="checkpoints in a row that were not written",
        bound=UNWRITTEN,
        settings=("run.dir",),
        find=_unwritten,
    ),
    Condition(
        names=("journal_waits",),
        measures="1 where the journal waits for its disk",
        bound=0.0,
        settings=("run.dir",),
        find=_journal_waits,
    ),
)
