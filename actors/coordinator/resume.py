"""Going on after an end. Invariant: a resumed run trains from the newest whole checkpoint that the
journal knows, and keeps everything that was generated and judged since.

What it cannot use it names and puts aside, never deletes: a checkpoint that is damaged, or newer
than the journal because its last events were not on disk when everything was killed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from actors.coordinator.event_store import EventStore
from actors.coordinator.generation import taken_back
from asyncrl.experience.events import Dropped
from asyncrl.experience.experience import Experience
from asyncrl.experience.recovery import recovered
from asyncrl.experience.rollout import RolloutStatus
from asyncrl.journal import Journal, JournalReader
from asyncrl.training.checkpoint_index import CheckpointError

logger = logging.getLogger(__name__)


class FoundCheckpoint(Protocol):
    """Weights on disk."""

    @property
    def version(self) -> int: ...

    def verify(self) -> None:
        """Raises CheckpointError where it is not what was written."""
        ...

    def set_aside(self) -> None:
        """Nothing starts from it any more."""
        ...


def resumed(
    history: JournalReader, checkpoints: Sequence[FoundCheckpoint]
) -> tuple[Experience, int]:
    """The state to go on from, and the version that training starts from: that of the newest of
    `checkpoints` (oldest first) that is whole and in the journal, or 0. Newer ones are set aside.
    Raises JournalError."""
    numbers = {
        version: number for number, version in history.snapshots()
    }  # the newest of each version
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
    """Write down where the run goes on from, and take back what actors that are gone had."""
    journal.abandon(version)
    journal.keep(version, store.experience)
    experience = store.experience
    for rollout in list(experience.rollouts.values()):
        if rollout.status is RolloutStatus.LEASED:
            store.record(taken_back(rollout, "resumed"))
    for group in [group.id for group in experience.groups.values() if group.split == "evaluation"]:
        store.record(Dropped(group, "evaluation"))
