"""Checkpoints and evaluations that are due at some versions. Invariant: one that is due and has to
wait is made up for as soon as it can be; of checkpoints one is written at a time.
"""

from __future__ import annotations

import math

from asyncrl.experience import events as e
from asyncrl.messages import CloseStep, Message, Save, Saved, Stepped
from asyncrl.simulation.checker.checked_run import CheckedRun

PUBLICATIONS = 2
"""Publications after an evaluation was given up, within which another begins: the first may have
been under way."""


class ScheduleWitness:
    """Hears of one life what is due, and what is done."""

    def __init__(self, run: CheckedRun) -> None:
        self._run = run
        self._unsaved = False  # a checkpoint is due, and was not asked for
        self._writing = False  # one was asked for, and is not answered
        self._saved = 0  # the number of the event that says so of the last one
        self._savable = math.inf  # since when it can be asked for
        self._missed: int | None = None  # publications since an evaluation was given up

    def told(self, message: Message) -> None:
        """The coordinator tells the trainer this."""
        match message:
            case Save():
                self._run.hold(
                    "schedule",
                    not self._writing,
                    "a checkpoint is asked for while another is written",
                )
                self._unsaved, self._writing, self._savable = False, True, math.inf
            case CloseStep(step):
                late = self._unsaved and self._savable < self._run.closable.get(step, -math.inf)
                self._run.hold(
                    "schedule", not late, "step {} is closed before a checkpoint that is due", step
                )

    def delivered(self, message: Message) -> None:
        """The coordinator has received this from the trainer."""
        if isinstance(message, Saved):
            self._writing = False
            self.look()
        if isinstance(message, Stepped):
            train = self._run.config.train
            every = train.checkpoint_every
            self._unsaved |= bool(every and message.version % every == 0)
            self._unsaved |= message.version == train.steps
            self.look()

    def look(self) -> None:
        """Look whether what is due can be done."""
        if self._unsaved and not self._writing and self._run.store.durable >= self._saved:
            self._savable = min(self._savable, self._run.clock())

    def checkpointed(self, number: int) -> None:
        """The event of this number says that a checkpoint is complete."""
        self._saved, self._savable = number, math.inf

    def given_up(self) -> None:
        """An evaluation was given up."""
        self._missed = 0

    def evaluated(self) -> None:
        """Another one has begun."""
        self._missed = None

    def published(self, event: e.Published) -> None:
        """A version is published."""
        if self._missed is not None:
            self._missed += 1
            self._run.hold(
                "schedule",
                self._missed <= PUBLICATIONS,
                "an evaluation was given up {} publications ago, and none has begun since",
                self._missed,
            )
