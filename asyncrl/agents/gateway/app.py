"""The gateway as an ASGI application: calls, notes and rewards of the episodes that agents play.
Invariant: no body is read before the key is checked.

    …      /sessions/NAME/v1/…             a dialect (`call_routes`), with the key for calls
    GET    /v1/sessions/NAME/notes/KEY     {"value": …}, or 404; with the key for calls
    POST   /v1/sessions/NAME/notes/KEY     {"value": …}: the first of a key is kept, and returned
    POST   /v1/sessions/NAME/reward        {"reward": 1.0, "turn": -1}, with the key for rewards: of
                                           the turn of an answered call, from the last one where
                                           negative; without turn, or null: of the whole
    POST   /v1/episodes                    where programs elsewhere play: the next episode, or 204
    POST   /v1/sessions/NAME/opened        {"kind": "container", "name": "asyncrl-1", "end":
                                           ["docker"]}, before it is opened; DELETE with the same
                                           ends it. With the key for rewards
    DELETE /v1/sessions/NAME               there too: the attempt has failed; the body may say why:
                                           {"reason": "…"}
    GET    /v1/sessions/NAME/messages      {"messages": […]}: the prompt, in the form of OpenAI's
                                           chat, images as data URLs; with the key for calls
    GET    /ready                          without a key

The run's key opens everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from asyncrl.agents.gateway import api_requests
from asyncrl.agents.gateway.call_routes import HANDLERS, CallRoutes, Handler, session_of, whole
from asyncrl.agents.gateway.capability import Right, has_right
from asyncrl.agents.gateway.dialects.every_dialect import every_dialect
from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.agents.gateway.game_routes import GameRoutes
from asyncrl.agents.gateway.gateway import Gateway
from asyncrl.agents.gateway.offers import Offers
from asyncrl.agents.gateway.openings import Openings
from asyncrl.agents.gateway.other_call import OtherModels
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.agents.gateway.seats import Seats
from asyncrl.sandbox.opened import NoteError

NAME = 200
"""The most characters of a note's key."""
POLL_S = 20.0
"""Seconds that a request waits for an episode."""


def application(
    gateway: Gateway,
    sessions: PlayedSessions,
    offers: Offers | None,
    openings: Openings | None = None,
    others: OtherModels | None = None,
    seats: Seats | None = None,
) -> Starlette:
    """The routes above. With `offers`, programs elsewhere play; with `openings`, agents may open
    things outside; with `seats`, another run's agents play (`game_routes`). Calls of the models in
    `others` are forwarded."""
    app = _EpisodeRoutes(gateway, sessions, offers, openings, others)
    calls, session = "/sessions/{session}/v1", "/v1/sessions/{session}"
    note = session + "/notes/{name:path}"
    routes: list[BaseRoute] = [
        Route("/ready", app.ready, methods=["GET"]),
        *_dialect_routes(app, calls),
        Route(f"{calls}/models", app.of("call", app.models), methods=["GET"]),
        Route(f"{calls}/models/{{model:path}}", app.of("call", app.one_model), methods=["GET"]),
        Route(note, app.of("call", app.noted), methods=["GET"]),
        Route(note, app.of("call", app.note), methods=["POST"]),
        Route(f"{session}/messages", app.of("call", app.messages), methods=["GET"]),
        Route(f"{session}/reward", app.of("reward", app.reward), methods=["POST"]),
        Route(f"{session}/failed", app.of("reward", app.failed), methods=["POST"]),
    ]
    if openings is not None:
        routes += [
            Route(f"{session}/opened", app.of("reward", app.opened), methods=["POST"]),
            Route(f"{session}/opened", app.of("reward", app.closed), methods=["DELETE"]),
        ]
    if offers is not None:
        routes += [
            Route("/v1/episodes", app.of("run", app.episode), methods=["POST"]),
            Route(session, app.of("reward", app.give_up), methods=["DELETE"]),
        ]
    if seats is not None:
        games = GameRoutes(gateway, sessions, seats)
        routes += [
            Route("/v1/episodes", app.of("run", games.seek), methods=["POST"]),
            Route(f"{session}/kept", app.of("reward", games.kept), methods=["POST"]),
            Route(f"{session}/end", app.of("reward", games.end), methods=["POST"]),
            Route(session, app.of("reward", games.leave), methods=["DELETE"]),
        ]
    return Starlette(routes=routes, exception_handlers=HANDLERS)


def _dialect_routes(app: _EpisodeRoutes, calls: str) -> Iterator[BaseRoute]:
    for dialect in every_dialect():
        spoken = app.of("call", app.spoken(dialect))
        yield Route(f"{calls}{dialect.path}", spoken, methods=["POST"])
        if dialect.counts is not None:
            counted = app.of("call", app.counted(dialect))
            yield Route(f"{calls}{dialect.counts[0]}", counted, methods=["POST"])


class _KeyGuarded:
    """An ASGI endpoint that requires its session's key for `right`, or the run's key."""

    def __init__(
        self, sessions: PlayedSessions, right: Right | Literal["run"], handler: Handler
    ) -> None:
        self._sessions, self._right, self._handler = sessions, right, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        key = key or request.headers.get("x-api-key", "")
        if not self._sessions.is_run_key(key) and (
            self._right == "run"
            or not has_right(key, self._sessions.key, session_of(request), self._right)
        ):
            raise GatewayError(401, "invalid_api_key", _WRONG[self._right])
        if self._right != "run":
            self._sessions.heard(session_of(request))
        await self._handler(request, send)


_WRONG = {
    "call": "the key is not this session's key for calls (episode.api_key)",
    "reward": "the key is not this session's key for rewards (episode.reward_key)",
    "run": "the key is not the run's key, which is in the run directory (gateway.key)",
}


class _EpisodeRoutes(CallRoutes):
    """The handlers of all routes."""

    def __init__(
        self,
        gateway: Gateway,
        sessions: PlayedSessions,
        offers: Offers | None,
        openings: Openings | None,
        others: OtherModels | None,
    ) -> None:
        super().__init__(gateway, sessions, others)
        self._offers, self._openings = offers, openings

    def of(self, right: Right | Literal["run"], handler: Handler) -> _KeyGuarded:
        return _KeyGuarded(self._sessions, right, handler)

    async def noted(self, request: Request, send: Send) -> None:
        value = self.session(request).noted(_name(request))
        if value is None:
            raise GatewayError(404, "no_note", "nothing is noted under this key")
        await whole(request, send, _value(value))

    async def note(self, request: Request, send: Send) -> None:
        self.session(request)
        name, value = _name(request), api_requests.note(await self.body(request))
        kept = self.session(request).note(name, value)
        await whole(request, send, _value(kept))

    async def messages(self, request: Request, send: Send) -> None:
        found = {"messages": self.session(request).messages}
        await whole(request, send, msgspec.json.encode(found))

    async def reward(self, request: Request, send: Send) -> None:
        self.session(request)
        asked = api_requests.turn_reward(await self.body(request))
        session = self.session(request)
        session.reward(asked.reward, asked.turn, asked.key)
        if self._offers is not None and asked.turn is None:
            self._offers.end(session.name, "rewarded")
        answer = {"session": session.name, "reward": asked.reward, "turn": asked.turn}
        await whole(request, send, msgspec.json.encode(answer))

    async def failed(self, request: Request, send: Send) -> None:
        self.session(request)
        asked = api_requests.turn_failed(await self.body(request))
        session = self.session(request)
        session.fail(asked.tool, asked.turn)
        answer = {"session": session.name, "tool": asked.tool, "turn": asked.turn}
        await whole(request, send, msgspec.json.encode(answer))

    async def opened(self, request: Request, send: Send) -> None:
        assert self._openings is not None, "this route exists only with openings"
        opened = api_requests.opened(await self.body(request))
        with _noting():
            named = await self._openings.open(self.session(request).name, opened)
        await whole(request, send, msgspec.json.encode({"opened": named}))

    async def closed(self, request: Request, send: Send) -> None:
        assert self._openings is not None, "this route exists only with openings"
        opened = api_requests.opened(await self.body(request))
        with _noting():
            wrong = await self._openings.close(self.session(request).name, opened)
        await whole(request, send, msgspec.json.encode({"ended": not wrong, "reason": wrong}))

    async def give_up(self, request: Request, send: Send) -> None:
        self.session(request)
        assert self._offers is not None, "this route exists only if programs elsewhere play"
        asked = api_requests.given_up(await self.body(request))
        session = self.session(request)
        self._offers.end(session.name, "given_up", asked.reason)
        await whole(request, send, msgspec.json.encode({"session": session.name}))

    async def episode(self, request: Request, send: Send) -> None:
        """Answer with the next episode, or 204 if there is none within `POLL_S`. A program that
        disconnects gets none."""
        assert self._offers is not None, "this route exists only if programs elsewhere play"
        await self.body(request)
        facts: bytes | None = None

        async def leave() -> None:
            await self.gone(request)
            scope.cancel()

        with trio.move_on_after(POLL_S) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(leave)
                facts = await self._offers.take()
                nursery.cancel_scope.cancel()
        if facts is None:
            await Response(status_code=204)(request.scope, request.receive, send)
        else:
            await whole(request, send, facts)


@contextmanager
def _noting() -> Iterator[None]:
    """Say in the API's form why the note failed, so that the agent opens nothing."""
    try:
        yield
    except NoteError as error:
        raise GatewayError(422, "not_endable", str(error)) from error
    except OSError as error:
        raise GatewayError(503, "not_noted", f"it could not be noted: {error}") from error


def _name(request: Request) -> str:
    name: str = request.path_params["name"]
    if not 0 < len(name) <= NAME:
        raise GatewayError(422, "note_key", f"the key of a note must have 1 to {NAME} characters")
    return name


def _value(text: bytes) -> bytes:
    return b'{"value":' + text + b"}"
