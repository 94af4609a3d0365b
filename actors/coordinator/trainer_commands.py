"""Commands for the trainer: what it computes, one after the other.

Invariant: at most OUTSTANDING commands are with the trainer, so it always reads what else it is
told at once: a publication begins and ends beside its work, however much of that waits here. A
checkpoint has its turn among them and is written beside those that follow, so that it is none of
these.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from asyncrl.actors.coordinator.peers import Peer
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.messages import CloseStep, MicroBatch, Save, ScoreProximal

OUTSTANDING = 2
"""Commands that may be with the trainer: the one that it works on, and the next, so that it never
asks."""

Command = MicroBatch | ScoreProximal | CloseStep
Kind = TypeVar("Kind", MicroBatch, ScoreProximal, CloseStep)


class TrainerCommands:
    """The commands that the trainer has not answered yet, in the order in which they are given.
    Each has one answer: Consumed, ScoredProximal or Stepped; and Saved, whenever it comes."""

    def __init__(self, trainer: Peer) -> None:
        self._trainer = trainer
        self._sent: deque[Command] = deque()
        self._saving = False  # the trainer has a Save
        self._waiting: deque[tuple[Command | Save, tuple[object, ...]]] = deque()

    @property
    def none(self) -> bool:
        """True if the trainer has answered all."""
        return not self._sent and not self._waiting

    def queue(self, command: Command | Save, *buffers: object) -> None:
        """Give a command after all others."""
        self._waiting.append((command, buffers))
        self._refill()

    def answered(self, kind: type[Kind]) -> Kind:
        """The trainer answered a command of this kind. Returns the command. Raises ImpossibleEvent
        if the oldest one that it has is of another kind."""
        command = self._sent[0] if self._sent else None
        if not isinstance(command, kind):
            has = type(command).__name__ if command is not None else "nothing"
            raise ImpossibleEvent(f"the trainer answered a {kind.__name__}, and its turn is {has}")
        self._sent.popleft()
        self._refill()
        return command

    def saved(self) -> None:
        """The trainer answered a Save. Raises ImpossibleEvent if it has none."""
        if not self._saving:
            raise ImpossibleEvent("the trainer answered a Save, and has none")
        self._saving = False

    def _refill(self) -> None:
        while self._waiting:
            command, buffers = self._waiting[0]
            if isinstance(command, Save):
                self._saving = True
            elif len(self._sent) < OUTSTANDING:
                self._sent.append(command)
            else:
                return
            self._waiting.popleft()
            self._trainer.send(command, *buffers)
