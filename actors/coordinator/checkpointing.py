"""Has the trainer write checkpoints, and keeps the journal in step with them.

Invariant: of the last two checkpoints the journal knows at least one, so a crash at any moment
leaves one to resume from. One is written at a time.
"""

from __future__ import annotations

import logging

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.trainer_commands import TrainerCommands
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.experience.events import Checkpointed
from asyncrl.messages import Save, Saved

logger = logging.getLogger(__name__)


class Checkpointing:
    """The checkpoints of a run, from the trainer's first version on."""

    def __init__(self, store: EventStore, trainer: TrainerCommands, version: int) -> None:
        """`version` is the one that the trainer started from."""
        self._store = store
        self._trainer = trainer
        self.saved = version
        """The last version whose checkpoint is complete."""
        self._asked = version  # the last version for which one was requested
        self._models = False  # with the models for use elsewhere
        self._alone = False  # these were requested alone, and are not answered
        self.left: int | None = None
        """The version of which the models for use elsewhere are written; None: there are none."""
        self._event = 0  # the number of the event of the last complete one
        # the last version whose checkpoint was not written, and why
        self._unwritten = version, ""

    @property
    def under_way(self) -> int | None:
        """The version whose checkpoint was requested and not answered yet; None: there is none."""
        return None if self._asked == self.saved and not self._alone else self._asked

    def unsaved(self, version: int) -> str:
        """The reason why the checkpoint of `version` was not written. Empty if it was written, or
        was not attempted."""
        failed, why = self._unwritten
        return why if version == failed else ""

    def save(self, version: int, last: bool) -> bool:
        """Have the trainer save `version`, which it holds now, once; if it is the run's `last`,
        with the models for use elsewhere. Returns False if that must wait until another one is
        written, or until the event of the last one is on disk.

        The state is kept as it is now. So the work that the open step has taken is not in the
        checkpoint, and a resumed run takes it again.
        """
        if version not in (self._asked, self.saved):
            if self.under_way is not None or self._store.durable < self._event:
                return False
            self._asked, self._unwritten, self._models = version, (version, ""), last
            self._store.keep(version)
            self._trainer.queue(Save(self._store.cursor, "too" if last else "no"))
        elif last and self.left != version and self.under_way is None:
            # that it was the last was not known when it was saved
            self._alone, self._unwritten = True, (version, "")
            self._trainer.queue(Save(self._store.cursor, "alone"))
        return True

    def on_saved(self, message: Saved) -> None:
        """Handle a checkpoint that is complete, or could not be written. If it is complete, the
        journal may drop all before its predecessor. Raises ImpossibleEvent for one that was not
        requested."""
        if message.version != self.under_way:
            raise ImpossibleEvent(f"a checkpoint of version {message.version} was not requested")
        alone, self._alone = self._alone, False
        if message.error:
            logger.warning(
                "the checkpoint of version %d was not written: %s", message.version, message.error
            )
            self._unwritten, self._asked = (message.version, message.error), self.saved
            return
        if alone or self._models:
            self.left = message.version
        if alone:
            return
        self._store.record(Checkpointed(message.version, message.path))
        self._event = self._store.cursor
        self._store.compact(self.saved)
        self.saved = message.version
