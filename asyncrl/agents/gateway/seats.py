"""Seats in the games of a guest (`agent.run = "guest"`): a host's agent requests one, and holds it
until it ends or leaves it. Invariant: only the agent that requested a seat gets it, and the first
end that is reported counts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count

import trio

from asyncrl.agents.gateway.disk_waits import DiskWaits
from asyncrl.agents.gateway.played_session import PlayedSession, ended
from asyncrl.messages import GameState, Message, NoSeat, Seek, Standing, Unseek
from asyncrl.runtime.ipc.waits import WaitExpired, Waits


class Seat:
    """An episode that a host's agent plays; `over` once it was ended or left."""

    def __init__(self) -> None:
        self.over, self.left = trio.Event(), ""


class _Sought:
    def __init__(self) -> None:
        self.found = trio.Event()
        self.answer: bytes | GameState | None = None


class Seats:
    """The seats of an agents actor. `say` sends to the coordinator, in order."""

    def __init__(self, say: Callable[[Message], None], keeping: DiskWaits, waits: Waits) -> None:
        self._say, self.keeping, self._waits = say, keeping, waits
        self._tickets = count(1)
        self._sought: dict[int, _Sought] = {}
        self._seats: dict[str, Seat] = {}

    async def seek(self, key: int, standing: Standing, within_s: float) -> bytes | GameState | None:
        """The facts of a game's episode as JSON once it has begun, or the reason why there is none;
        None if that took too long."""
        ticket, sought = next(self._tickets), _Sought()
        self._sought[ticket] = sought
        self._say(Seek(ticket, key, standing))
        try:
            with (
                suppress(WaitExpired),
                self._waits.on("a game's admission", owner=f"game {key}", deadline_s=within_s),
            ):
                await sought.found.wait()
        finally:
            del self._sought[ticket]
            if sought.answer is None:
                self._say(Unseek(ticket))
        return sought.answer

    def refuse(self, message: NoSeat) -> None:
        """Take the coordinator's answer that there is no seat."""
        self._answer(message.ticket, message.state)

    def give(self, ticket: int, session: str, facts: bytes) -> Seat | None:
        """Give an episode to the agent that requested it; None if that agent is gone."""
        if not self._answer(ticket, facts):
            return None
        seat = self._seats[session] = Seat()
        return seat

    def take_back(self, session: str) -> None:
        """End a seat that is no longer played."""
        self._seats.pop(session, None)

    async def end(self, session: PlayedSession, reward: float) -> str:
        """End an episode well, and return its state (`Kept`) once that is on disk. Raises
        GatewayError (404) if no agent plays it."""
        seat = self._seat(session)
        session.reward(reward, None)
        session.played()
        session.end()
        try:
            return await self.keeping.kept(session.play)
        finally:
            seat.over.set()

    def leave(self, session: PlayedSession, why: str) -> None:
        """Leave an episode, which may be requested again. Raises GatewayError (404)."""
        seat = self._seat(session)
        seat.left = why or "the host's attempt is over"
        seat.over.set()

    def _seat(self, session: PlayedSession) -> Seat:
        if (seat := self._seats.get(session.name)) is None or session.over:
            raise ended(session.name)
        return seat

    def _answer(self, ticket: int, answer: bytes | GameState) -> bool:
        if (sought := self._sought.get(ticket)) is None or sought.answer is not None:
            return False
        sought.answer = answer
        sought.found.set()
        return True
