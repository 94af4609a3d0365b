"""Going on after an end. Invariant: a resumed run starts from the state that its newest checkpoint belongs to, at an event boundary.

The journal is cut after the checkpoint's cursor, so that state and weights fit each other; what was generated after it is generated again.
"""

from __future__ import annotations

from pathlib import Path

from actors.coordinator.book import Book
from asyncrl import journal
from asyncrl.experience.events import Dropped, Recycled, Returned
from asyncrl.experience.rollout import Status
from asyncrl.experience.state import Experience
from asyncrl.training.checkpoints import latest, scalars


def resumed(run: Path, path: Path) -> Experience:
    """The state at the newest complete checkpoint of a run, whose journal, at `path`, is cut there."""
    checkpoint = latest(run)
    journal.truncate(path, after=scalars(checkpoint).cursor if checkpoint is not None else 0)
    return journal.fold(path)


def release(book: Book) -> None:
    """Nobody holds anything any more: take back what actors that are gone had."""
    experience = book.experience
    for rollout in list(experience.rollouts.values()):
        if rollout.status is Status.LEASED:
            book.record(Recycled(rollout.id, rollout.attempt, "resumed"))
    if experience.taken():
        assert experience.step is not None
        book.record(Returned(experience.step))
    for group in [group.id for group in experience.groups.values() if group.purpose == "evaluation"]:
        book.record(Dropped(group, "evaluation"))
