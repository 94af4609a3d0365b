"""The gateway of a guest, for the host of its games. Invariant: no body is read before the key is
checked, so that no stranger takes a seat.

    POST   /v1/episodes            {"key": 12, "next": …, "live": […], "buried": […]}, with the
                                   run's key: the facts of the game's episode, or {"state": …}
                                   where it cannot be played; 204 after 20 s without it
    POST   /v1/sessions/NAME/kept  {"state": "live"} once all of it so far is on the disk
    POST   /v1/sessions/NAME/end   {"reward": 1.0} ends it well: {"state": "ended"}, on the disk
    DELETE /v1/sessions/NAME       {"reason": "…"}: this attempt is over, another may come

Only runs of the game know its key and the run's key with which a seat is requested.
"""

from __future__ import annotations

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from asyncrl.agents.gateway import api_requests
from asyncrl.agents.gateway.call_routes import CallRoutes, whole
from asyncrl.agents.gateway.gateway import Gateway
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.agents.gateway.seats import Seats
from asyncrl.messages import GameState, Standing

SEEK_S = 20.0
"""Seconds that a request waits for a seat."""


class GameRoutes(CallRoutes):
    """The handlers of these routes."""

    def __init__(self, gateway: Gateway, sessions: PlayedSessions, seats: Seats) -> None:
        super().__init__(gateway, sessions)
        self._seats = seats

    async def seek(self, request: Request, send: Send) -> None:
        """Answer with a seat, or 204 if there is none in time. A host that disconnects gets
        none."""
        asked = api_requests.sought(await self.body(request))
        found: bytes | GameState | None = None

        async def leave() -> None:
            await self.gone(request)
            scope.cancel()

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(leave)
                standing = Standing(asked.next, asked.live, asked.buried)
                found = await self._seats.seek(asked.key, standing, SEEK_S)
                nursery.cancel_scope.cancel()
        if found is None:
            await Response(status_code=204)(request.scope, request.receive, send)
        else:
            state = found if isinstance(found, bytes) else msgspec.json.encode({"state": found})
            await whole(request, send, state)

    async def kept(self, request: Request, send: Send) -> None:
        await self.body(request)
        state = await self._seats.keeping.kept(self.session(request).play)
        await whole(request, send, msgspec.json.encode({"state": state}))

    async def end(self, request: Request, send: Send) -> None:
        asked = api_requests.ended_game(await self.body(request))
        state = await self._seats.end(self.session(request), asked.reward)
        await whole(request, send, msgspec.json.encode({"state": state}))

    async def leave(self, request: Request, send: Send) -> None:
        asked = api_requests.given_up(await self.body(request))
        session = self.session(request)
        self._seats.leave(session, asked.reason)
        await whole(request, send, msgspec.json.encode({"session": session.name}))
