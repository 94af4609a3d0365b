"""The gateway as an ASGI application. Invariant: no body is read before the key is proved, and
every answer that is not what was asked for is one sentence in OpenAI's form.

    POST   /sessions/{session}/v1/chat/completions   `stream` or not
    POST   /sessions/{session}/v1/completions        `stream` or not
    GET    /sessions/{session}/v1/models
    POST   /v1/sessions/{session}/reward             {"reward": 1.0}, or {"prompt_index": 17} for
                                                     the task to judge: the session is complete
    DELETE /v1/sessions/{session}                    its agent gives up
    GET    /v1/prompts/{prompt_index}                a training prompt of the run's task
    GET    /ready                                    without a key: 200 where calls are answered,
                                                     503 where not

The session is in the base URL, so that an agent needs no change. A client that has several sessions
at a time may leave it out of the path and send the header `x-session` with each call.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from asyncrl.gateway import api_answers, api_requests
from asyncrl.gateway.api_answers import AnswerPart, Envelope
from asyncrl.gateway.errors import GatewayError, bad
from asyncrl.gateway.gateway import Gateway
from asyncrl.gateway.prompt_reader import Prompt
from asyncrl.gateway.tools import Hermes, PlainText
from asyncrl.httpd.asgi import Headers
from asyncrl.ipc.waits import WaitExpired

_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_JSON = "application/json"

Handler = Callable[[Request, Send], Awaitable[None]]


def has_key(key: bytes, headers: Headers) -> bool:
    """True if a request with these headers comes from who has the key."""
    given = next((value for name, value in headers if name == b"authorization"), b"")
    return hmac.compare_digest(given, b"Bearer " + key)


def application(gateway: Gateway, key: str) -> Starlette:
    """The routes above, for agents that have `key`."""
    app = _RunRoutes(gateway, key.encode())
    routes: list[BaseRoute] = [Route("/ready", app.ready, methods=["GET"])]
    for prefix in ("", "/sessions/{session}"):
        routes += [
            Route(f"{prefix}/v1/chat/completions", app.guarded(app.chat), methods=["POST"]),
            Route(f"{prefix}/v1/completions", app.guarded(app.text), methods=["POST"]),
            Route(f"{prefix}/v1/models", app.guarded(app.models), methods=["GET"]),
        ]
    routes += [
        Route("/v1/sessions/{session}/reward", app.guarded(app.reward), methods=["POST"]),
        Route("/v1/sessions/{session}", app.guarded(app.give_up), methods=["DELETE"]),
        Route("/v1/prompts/{prompt_index}", app.guarded(app.prompt), methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers=HANDLERS)


class _Guarded:
    """An ASGI endpoint for who has the key."""

    def __init__(self, key: bytes, handler: Handler) -> None:
        self._key, self._handler = key, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not has_key(self._key, scope["headers"]):
            raise GatewayError(
                401,
                "invalid_api_key",
                "this is not the key of this run's gateway; give it as the client's api_key",
            )
        await self._handler(Request(scope, receive), send)


class CallRoutes:
    """The handlers of OpenAI's API."""

    ignored: Sequence[str] = api_requests.IGNORED
    """Parameters that are accepted and have no effect."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def ready(self, request: Request) -> Response:
        return Response(status_code=200 if self._gateway.ready else 503)

    async def models(self, request: Request, send: Send) -> None:
        await whole(request, send, api_answers.models(self._gateway.settings.model))

    async def chat(self, request: Request, send: Send) -> None:
        session = session_of(request)
        with self._gateway.slot():
            asked, prompt = await self._gateway.reader.chat(session, await self._body(request))
            envelope = self._envelope(api_answers.Chat, "chatcmpl", asked)
            tools = bool(asked.offered)
            await self._answer(request, send, session, asked, prompt, envelope, tools=tools)

    async def text(self, request: Request, send: Send) -> None:
        session = session_of(request)
        with self._gateway.slot():
            asked, prompt = await self._gateway.reader.text(session, await self._body(request))
            envelope = self._envelope(api_answers.Text, "cmpl", asked)
            await self._answer(request, send, session, asked, prompt, envelope, tools=False)

    async def _answer(
        self,
        request: Request,
        send: Send,
        session: str,
        asked: api_requests.CallRequest,
        prompt: Prompt,
        envelope: Envelope,
        *,
        tools: bool,
    ) -> None:
        """Sample, and answer in one or as a stream."""
        headers = {"x-session": session}
        if ignored := [name for name in self.ignored if getattr(asked, name) is not None]:
            headers["x-ignored"] = ", ".join(ignored)
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
                temperature=1.0 if asked.temperature is None else asked.temperature,
                stops=asked.stops,
                parser=Hermes() if tools else PlainText(),
                scored=asked.scored,
                write=write,
                gone=lambda: self._gone(request),
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

    async def _gone(self, request: Request) -> None:
        """Return when nobody waits for the answer any more."""
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

    async def _body(self, request: Request) -> bytes:
        """The whole body. Raises GatewayError where it is too large, or too slow."""
        settings, body = self._gateway.settings, bytearray()
        # a length that was said, so that what is too large is not read at all
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


class _RunRoutes(CallRoutes):
    """The handlers for who has the run's key."""

    def __init__(self, gateway: Gateway, key: bytes) -> None:
        super().__init__(gateway)
        self._key = key

    def guarded(self, handler: Handler) -> _Guarded:
        return _Guarded(self._key, handler)

    async def reward(self, request: Request, send: Send) -> None:
        session = session_of(request)
        match api_requests.reward(await self._body(request)):
            case api_requests.RewardByTask(prompt_index):
                with self._gateway.slot():
                    reward = await self._gateway.judge(session, prompt_index)
            case api_requests.RewardGiven(reward, prompt_index):
                self._gateway.reward(session, reward, prompt_index)
        await whole(request, send, msgspec.json.encode({"session": session, "reward": reward}))

    async def prompt(self, request: Request, send: Send) -> None:
        prompt_index = api_requests.prompt_index(request.path_params["prompt_index"])
        with self._gateway.slot():
            text = await self._gateway.task_prompt(prompt_index)
        await whole(
            request, send, msgspec.json.encode({"prompt_index": prompt_index, "prompt": text})
        )

    async def give_up(self, request: Request, send: Send) -> None:
        session = session_of(request)
        self._gateway.give_up(session)
        await whole(request, send, msgspec.json.encode({"session": session, "reward": None}))


class _Stream:
    """Server-sent events; the response begins with the first, so that what fails before has a
    status of its own."""

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
    """The session of a request: in its path, or in its header. Raises GatewayError."""
    path, header = request.path_params.get("session"), request.headers.get("x-session")
    name: str | None = path or header
    if name is None:
        raise bad(
            "no session: use the base URL /sessions/NAME/v1, or send the header x-session with "
            "each call",
            code="no_session",
        )
    if path and header and path != header:
        raise bad(
            f"the path names session {path!r}, and the header x-session {header!r}; send one of "
            "them",
            code="two_sessions",
        )
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
