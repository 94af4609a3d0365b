"""Has the trainer write checkpoints, and keeps the journal in step with them.

Invariant: of the last two checkpoints the journal knows at least one, so a crash at any moment
leaves one to resume from. One is written at a time. Work that no checkpoint can keep is bounded:

    one is not written                  the run goes on, and is told of it
    a second one in a row               nothing new is admitted, and the present version is tried
                                        again every now and then (RETRIES times)
    none for `supervision.stall_s`      the run ends
    one is written                      all is as before
"""

from __future__ import annotations

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.trainer_commands import TrainerCommands
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.experience.events import Checkpointed
from asyncrl.explain.conditions.disks import HOLDS
from asyncrl.messages import Save, Saved

RETRIES = 10
"""Retries of a checkpoint before the run ends; each costs the time of one."""


class Checkpointing:
    """The checkpoints of a run, from the trainer's first version on."""

    def __init__(
        self, store: EventStore, trainer: TrainerCommands, version: int, patience_s: float
    ) -> None:
        """`version` is the one that the trainer started from. The run waits `patience_s` seconds
        for a disk to which no checkpoint can be written."""
        self._store = store
        self._patience_s = patience_s
        self._trainer = trainer
        self.saved = version
        """The last version whose checkpoint is complete."""
        self._asked = version  # the last version for which one was requested
        self._models = False  # with the models for use elsewhere
        self._alone = False  # these were requested alone, and are not answered
        self.left: int | None = None
        """The version whose models for use elsewhere are written; None: there are none."""
        self._event = 0  # the number of the event of the last complete one
        # the last version whose checkpoint was not written, and why
        self._unwritten = version, ""
        self.unwritten = 0
        """Failed checkpoints in a row, up to the last one."""
        self.unwritten_why = ""
        """The reason why the last of them failed."""
        self._answered = self._held = 0.0  # when the last one was answered, and held work back

    @property
    def under_way(self) -> int | None:
        """The version whose checkpoint was requested and is not answered yet; None: there is
        none."""
        return None if self._asked == self.saved and not self._alone else self._asked

    def unsaved(self, version: int) -> str:
        """The reason why the checkpoint of `version` was not written. Empty if it was written, or
        was not attempted."""
        failed, why = self._unwritten
        return why if version == failed else ""

    @property
    def holds(self) -> bool:
        """True if nothing new may be admitted, because checkpoints cannot be written."""
        return self.unwritten >= HOLDS

    def due_again(self, now: float) -> bool:
        """True if it is time to retry the checkpoint."""
        return (
            self.holds
            and self.under_way is None
            and self._answered + self._patience_s / RETRIES <= now < self._held + self._patience_s
        )

    def given_up(self, now: float) -> bool:
        """True if no checkpoint could be written for so long that the run ends."""
        return self.holds and self.under_way is None and now >= self._held + self._patience_s

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

    def on_saved(self, message: Saved, now: float) -> None:
        """Handle a checkpoint that is complete or could not be written, at `now` (seconds of the
        run's clock). If it is complete, the journal may drop everything before its predecessor.
        Raises ImpossibleEvent for one that was not requested."""
        if message.version != self.under_way:
            raise ImpossibleEvent(f"a checkpoint of version {message.version} was not requested")
        alone, self._alone = self._alone, False
        if message.error:
            self._unwritten, self._asked = (message.version, message.error), self.saved
            self.unwritten, self.unwritten_why = self.unwritten + 1, message.error
            self._answered = now
            if self.unwritten == HOLDS:
                self._held = now
            return
        self.unwritten, self.unwritten_why = 0, ""
        if alone or self._models:
            self.left = message.version
        if alone:
            return
        self._store.record(Checkpointed(message.version, message.path))
        self._event = self._store.cursor
        self._store.compact(self.saved)
        self.saved = message.version
