"""Waits until the messages about an attempt are on its run's disk. Invariant: each request gets its
own answer, within a bounded time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import trio

from asyncrl.messages import KeepGame, Kept, Play
from asyncrl.runtime.ipc.waits import Waits

KEPT_S = 600.0
"""Seconds within which the messages must be on disk."""


class DiskWaits:
    """The requests of an agents actor. `say` sends to the coordinator, in order."""

    def __init__(self, say: Callable[[KeepGame], None], waits: Waits) -> None:
        self._say, self._waits = say, waits
        self._tickets = count(1)
        self._asked: dict[int, trio.Event] = {}
        self._told: dict[int, Kept] = {}

    async def kept(self, play: Play) -> str:
        """Return the state of an attempt (`Kept`) once all its messages are on disk. Raises
        WaitExpired."""
        ticket, told = next(self._tickets), trio.Event()
        self._asked[ticket] = told
        self._say(KeepGame(ticket, play.rollout, play.attempt))
        try:
            with self._waits.on("the journal", owner=f"rollout {play.rollout}", deadline_s=KEPT_S):
                await told.wait()
            return self._told[ticket].state
        finally:
            del self._asked[ticket]
            self._told.pop(ticket, None)

    def take(self, message: Kept) -> None:
        """Take an answer of the coordinator."""
        if (asked := self._asked.get(message.ticket)) is not None:
            self._told[message.ticket] = message
            asked.set()
