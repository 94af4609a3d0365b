"""OpenAI's part of the gateway, as ASGI handlers. Invariant: every failed request is
answered with one sentence in OpenAI's form.

    POST   /sessions/NAME/v1/chat/completions   `stream` or not
    POST   /sessions/NAME/v1/completions        `stream` or not
    GET    /sessions/NAME/v1/models
    GET    /ready                               200 if calls are answered, else 503

The session is in the base URL, so that an agent needs no change. The temperature is the run's: that
of a call is ignored, and named in the header `x-ignored`, because an agent is trained at one
temperature and evaluated at another.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Send

from asyncrl.agents.gateway import api_answers, api_requests
from asyncrl.agents.gateway.api_answers import AnswerPart, Envelope
from asyncrl.agents.gateway.errors import GatewayError, bad
from asyncrl.agents.gateway.gateway import FULL, Gateway
from asyncrl.agents.gateway.played_session import PlayedSession
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.agents.gateway.prompt_reader import Prompt
from asyncrl.agents.gateway.tools import Hermes, PlainText
from asyncrl.runtime.ipc.waits import WaitExpired

ENDS = (FULL, "context_length_exceeded")
"""Codes of calls that are refused because the episode is as long as it may be."""
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_JSON = "application/json"

Handler = Callable[[Request, Send], Awaitable[None]]


class CallRoutes:
    """The handlers of OpenAI's API."""

    def __init__(self, gateway: Gateway, sessions: PlayedSessions) -> None:
        self._gateway, self._sessions = gateway, sessions

    async def ready(self, request: Request) -> Response:
        return Response(status_code=200 if self._gateway.ready else 503)

    async def models(self, request: Request, send: Send) -> None:
        await whole(request, send, api_answers.models(self._gateway.settings.model))

    async def chat(self, request: Request, send: Send) -> None:
        with self._called(request) as session, self._gateway.slot():
            body = await self.body(request)
            asked, prompt = await self._gateway.reader.chat(session.known, body)
            envelope = self._envelope(api_answers.Chat, "chatcmpl", asked)
            tools = bool(asked.offered)
            await self._answer(request, send, session, asked, prompt, envelope, tools=tools)

    async def text(self, request: Request, send: Send) -> None:
        with self._called(request) as session, self._gateway.slot():
            body = await self.body(request)
            asked, prompt = await self._gateway.reader.text(session.known, body)
            envelope = self._envelope(api_answers.Text, "cmpl", asked)
            await self._answer(request, send, session, asked, prompt, envelope, tools=False)

    async def _answer(
        self,
        request: Request,
        send: Send,
        session: PlayedSession,
        asked: api_requests.CallRequest,
        prompt: Prompt,
        envelope: Envelope,
        *,
        tools: bool,
    ) -> None:
        """Sample, and answer at once or as a stream."""
        ignored = [name for name in api_requests.IGNORED if getattr(asked, name) is not None]
        headers = {"x-ignored": ", ".join(ignored)} if ignored else {}
        stream = _Stream(send, headers) if asked.stream else None
        parts: list[AnswerPart] = []

        async def write(read: AnswerPart) -> None:
            if stream is None:
                parts.append(read)
            else:
                await stream.send(envelope.part(read))

        try:
            answer = await self._gateway.answer(
                session,
                prompt,
                budget=asked.budget,
                stops=asked.stops,
                parser=Hermes() if tools else PlainText(),
                scored=asked.scored,
                special=asked.special,
                write=write,
                gone=lambda: self.gone(request),
            )
        except GatewayError as error:
            if stream is None or not stream.begun:
                raise
            await stream.end(api_answers.failed(error))
            return
        if answer is None:
            return
        if stream is None:
            await whole(request, send, envelope.whole(parts, answer.finish, answer.usage), headers)
        else:
            await stream.end(
                envelope.last(answer.finish, answer.usage if asked.usage else None)
                + api_answers.DONE
            )

    def session(self, request: Request) -> PlayedSession:
        """The session of a request. Raises GatewayError (404) if it is not played."""
        return self._sessions.named(session_of(request))

    @contextmanager
    def _called(self, request: Request) -> Iterator[PlayedSession]:
        """The session that is called in the block. Raises GatewayError if it takes no calls."""
        session = self.session(request)
        if session.rewarded:
            raise GatewayError(
                422, "rewarded", "the episode has its reward, and takes no more calls"
            )
        try:
            yield session
        except GatewayError as error:
            session.full |= error.code in ENDS
            raise

    async def gone(self, request: Request) -> None:
        """Return when the client has disconnected."""
        while (await request.receive())["type"] != "http.disconnect":
            pass

    def _envelope(
        self, kind: type[Envelope], prefix: str, asked: api_requests.CallRequest
    ) -> Envelope:
        return kind(
            number=f"{prefix}-{secrets.token_hex(12)}",
            model=asked.model,
            created=int(time.time()),
            scored=asked.scored,
        )

    async def body(self, request: Request) -> bytes:
        """The whole body. Raises GatewayError if it is too large, or too slow."""
        settings, body = self._gateway.settings, bytearray()
        # by the declared length, so that a body that is too large is not read at all
        if int(request.headers.get("content-length", "0")) > settings.body_bytes:
            raise _too_large(settings.body_bytes)
        try:
            with self._gateway.waits.on(
                "a request's body", owner="an agent", deadline_s=settings.body_s
            ):
                async for data in request.stream():
                    body += data
                    if len(body) > settings.body_bytes:
                        raise _too_large(settings.body_bytes)
        except WaitExpired as error:
            raise GatewayError(
                408, "too_slow", f"the request was not here after {settings.body_s:g} s"
            ) from error
        return bytes(body)


class _Stream:
    """Server-sent events; the response begins with the first, so that a call that fails
    before it has a status of its own."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send, self._headers = send, headers
        self.begun = False

    async def send(self, data: bytes, *, more: bool = True) -> None:
        if not self.begun:
            self.begun = True
            headers = {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-store",
                **self._headers,
            }
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def end(self, data: bytes) -> None:
        await self.send(data, more=False)


async def whole(
    request: Request, send: Send, body: bytes, headers: dict[str, str] | None = None
) -> None:
    """Answer with JSON."""
    await Response(body, 200, headers, _JSON)(request.scope, request.receive, send)


def session_of(request: Request) -> str:
    """The session in a request's path. Raises GatewayError if it is not a name."""
    name: str = request.path_params["session"]
    if not _SESSION.fullmatch(name):
        raise bad(
            "a session's name is 1 to 64 letters, digits, dots, dashes and underscores, the "
            "first a letter or digit",
            code="session_name",
        )
    return name


def _too_large(most: int) -> GatewayError:
    return GatewayError(
        413, "too_large", f"a request may have {most} bytes here; this one has more"
    )


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return error.response()


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = (
        "there is nothing at this path"
        if error.status_code == 404
        else "this path does not take this method"
    )
    return GatewayError(error.status_code, "no_route", what).response()


async def _left(request: Request, error: Exception) -> Response:
    return GatewayError(400, "gone", "the request ended before its body did").response()


async def _failed(request: Request, error: Exception) -> Response:
    """Starlette raises the error again after this, so that the server logs it."""
    return GatewayError(500, "internal_error", "the gateway failed; its log says why").response()


HANDLERS = {
    GatewayError: _refused,
    HTTPException: _no_route,
    ClientDisconnect: _left,
    Exception: _failed,
}
"""Answers to what a handler raises."""
