"""Going on after an end. Invariant: a resumed run starts from the state that its newest checkpoint belongs to, at an event boundary.

The journal is cut after the checkpoint's cursor, so that state and weights fit each other; what was generated after it is generated again.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from actors.coordinator.book import Book
from actors.coordinator.generation import taken_back
from asyncrl import journal
from asyncrl.experience.events import Dropped, Returned
from asyncrl.experience.rollout import Status
from asyncrl.experience.state import Experience
from asyncrl.training.checkpoints import complete, scalars

logger = logging.getLogger(__name__)


def resumed(run: Path, path: Path) -> Experience:
    """The state at the newest complete checkpoint of a run, whose journal, at `path`, is cut there."""
    last = max((number for number, _ in journal.read(path)), default=0)
    cursor = 0
    for checkpoint in reversed(complete(run)):
        if (cursor := scalars(checkpoint).cursor) <= last:
            break
        logger.warning("%s is newer than the journal, and is removed", checkpoint)
        shutil.rmtree(checkpoint)  # its last events were not on disk when everything was killed
        cursor = 0
    journal.truncate(path, after=cursor)
    return journal.fold(path)


def release(book: Book) -> None:
    """Nobody holds anything any more: take back what actors that are gone had."""
    experience = book.experience
    for rollout in list(experience.rollouts.values()):
        if rollout.status is Status.LEASED:
            book.record(taken_back(rollout, "resumed"))
    for step in sorted({experience.groups[rollout.group].step or 0 for rollout in experience.taken()}):
        book.record(Returned(step))
    for group in [group.id for group in experience.groups.values() if group.purpose == "evaluation"]:
        book.record(Dropped(group, "evaluation"))
