"""Commands for the trainer: what it computes, one after the other.

Invariant: at most OUTSTANDING commands are with the trainer, so it always reads what else it is
told at once: a publication begins and ends beside its work, however much of that waits here.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from actors.coordinator.peers import Peer
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.ipc.messages import CloseStep, MicroBatch, Save, ScoreProximal

OUTSTANDING = 2
"""Commands that may be with the trainer: the one that it works on, and the next, so that it never
asks."""

Command = MicroBatch | ScoreProximal | CloseStep | Save
Kind = TypeVar("Kind", MicroBatch, ScoreProximal, CloseStep, Save)


class TrainerCommands:
    """The commands that the trainer has not answered yet, in the order in which they are given.
    Each has one answer: Consumed, ScoredProximal, Stepped or Saved."""

    def __init__(self, trainer: Peer) -> None:
        self._trainer = trainer
        self._sent: deque[Command] = deque()
        self._waiting: deque[tuple[Command, tuple[object, ...]]] = deque()

    def queue(self, command: Command, *buffers: object) -> None:
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

    def _refill(self) -> None:
        while self._waiting and len(self._sent) < OUTSTANDING:
            command, buffers = self._waiting.popleft()
            self._sent.append(command)
            self._trainer.send(command, *buffers)
