"""Goes on with a run that has ended.

Invariant: a resumed run trains from the newest whole checkpoint that the journal knows, and keeps
everything that was generated and judged since.

A checkpoint that it cannot use is named and put aside, never deleted: it is damaged, or newer than
the journal because the journal's last events were not on disk when everything was killed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.reclaiming import taken_back
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.events import Dropped, Left
from asyncrl.experience.experience import Experience
from asyncrl.experience.recovery import recovered
from asyncrl.journal import Journal, JournalReader
from asyncrl.training.checkpoint_index import CheckpointError

logger = logging.getLogger(__name__)


class FoundCheckpoint(Protocol):
    """A checkpoint on disk."""

    @property
    def version(self) -> int: ...

    def verify(self) -> None:
        """Raises CheckpointError if it is not what was written."""
        ...

    def set_aside(self) -> None:
        """Put it where nothing starts from it any more."""
        ...


def resumed(
    history: JournalReader, checkpoints: Sequence[FoundCheckpoint]
) -> tuple[Experience, int]:
    """The state to go on from, and the version that training starts from. This is the version of
    the newest of `checkpoints` (oldest first) that is whole and in the journal, or 0. Newer ones
    are set aside. Raises JournalError.

    Example: of the checkpoints 10, 20 and 30, the journal knows 10 and 20, and 20 is whole. Then 30
    is set aside, and training goes on from version 20.
    """
    # by version, the number of the event after which its state was kept last
    numbers = {version: number for number, version in history.snapshots()}
    after, version = numbers.get(0, 0), 0
    base = Experience.of(history.snapshot(after)) if 0 in numbers else Experience()
    for checkpoint in reversed(checkpoints):
        try:
            checkpoint.verify()
            if checkpoint.version not in numbers:
                raise CheckpointError(
                    f"the checkpoint of version {checkpoint.version} is newer than the journal"
                )
        except CheckpointError as error:
            logger.warning("%s; it is put aside", error)
            checkpoint.set_aside()
        else:
            version, after = checkpoint.version, numbers[checkpoint.version]
            base = Experience.of(history.snapshot(after))
            break
    return recovered(base, (event for _, event in history.events(after))), version


def begin_again(store: EventStore, journal: Journal, version: int) -> None:
    """Write down the version that the run goes on from, and take back the rollouts of actors that
    are gone."""
    journal.abandon(version)
    journal.keep(version, store.experience)
    experience = store.experience
    for call in list(experience.calls.values()):
        if call.status is RolloutStatus.LEASED:
            store.record(taken_back(call, "resumed"))
    for rollout in list(experience.rollouts.values()):
        if rollout.episode is not None and rollout.status is RolloutStatus.BEGUN:
            store.record(Left(rollout.id, rollout.episode.attempt, "resumed"))
    for group in [group.id for group in experience.groups.values() if group.split == "evaluation"]:
        store.record(Dropped(group, "evaluation"))
