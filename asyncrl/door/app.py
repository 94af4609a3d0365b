"""The door as an ASGI application. Invariant: no body is read before the key is proved, and every answer that is not what was asked for is
one sentence in OpenAI's form.

    POST   /sessions/{session}/v1/chat/completions     `stream` or not
    POST   /sessions/{session}/v1/completions          `stream` or not
    GET    /sessions/{session}/v1/models
    POST   /v1/sessions/{session}/reward               {"reward": 1.0}, or {"item": 17} for the task to judge: the session is complete
    DELETE /v1/sessions/{session}                      its agent gives up
    GET    /v1/prompts/{item}                          a training prompt of the run's task
    GET    /ready                                      without a key: 200 where calls are answered, 503 where not

The session is in the base URL, so that an agent needs no change. A client that has several sessions at a time may leave it out of the
path and send the header `x-session` with each call.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from asyncrl.door import answers, requests
from asyncrl.door.answers import Envelope, Read
from asyncrl.door.door import Door, Prompt
from asyncrl.door.errors import DoorError, bad
from asyncrl.door.tools import Hermes, PlainText
from asyncrl.tasks import TaskError
from asyncrl.waits import WaitExpired

_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_JSON = "application/json"

Handler = Callable[[Request, Send], Awaitable[None]]


def application(door: Door, key: str) -> Starlette:
    """The routes above, for agents that have `key`."""
    app = _App(door, key.encode())
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
        Route("/v1/prompts/{item}", app.guarded(app.prompt), methods=["GET"]),
    ]
    handlers = {DoorError: _refused, HTTPException: _no_route, ClientDisconnect: _left, Exception: _failed}
    return Starlette(routes=routes, exception_handlers=handlers)


class _Guarded:
    """An ASGI endpoint for who has the key."""

    def __init__(self, key: bytes, handler: Handler) -> None:
        self._key, self._handler = key, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, b"Bearer " + self._key):
            raise DoorError(401, "invalid_api_key", "this is not the key of this run's door; give it as the client's api_key")
        await self._handler(request, send)


class _App:
    def __init__(self, door: Door, key: bytes) -> None:
        self._door, self._key = door, key

    def guarded(self, handler: Handler) -> _Guarded:
        return _Guarded(self._key, handler)

    async def ready(self, request: Request) -> Response:
        return Response(status_code=200 if self._door.ready else 503)

    async def models(self, request: Request, send: Send) -> None:
        await _whole(request, send, answers.models(self._door.settings.model))

    async def chat(self, request: Request, send: Send) -> None:
        session = _session(request)
        with self._door.slot():
            asked = requests.parse(await self._body(request), requests.ChatRequest)
            self._served(asked)
            messages, tools = requests.messages(asked), requests.tools(asked)
            try:
                text = await trio.to_thread.run_sync(partial(self._door.chat, messages, tools))
            except TaskError as error:
                raise bad(str(error), "messages") from error
            prompt = await self._door.prompt(session, text, start=False)
            await self._answer(request, send, session, asked, prompt, self._envelope(answers.Chat, "chatcmpl", asked), tools=bool(tools))

    async def text(self, request: Request, send: Send) -> None:
        session = _session(request)
        with self._door.slot():
            asked = requests.parse(await self._body(request), requests.TextRequest)
            self._served(asked)
            match asked.prompt:
                case str(text) | [str(text)]:
                    prompt = await self._door.prompt(session, text, start=True)
                case several:
                    prompt = Prompt([token for token in several if isinstance(token, int)], None)
                    if len(prompt.ids) < len(several):
                        raise bad("prompt must be one text, or the ids of one", "prompt")
            await self._answer(request, send, session, asked, prompt, self._envelope(answers.Text, "cmpl", asked), tools=False)

    async def reward(self, request: Request, send: Send) -> None:
        session = _session(request)
        match requests.reward(await self._body(request)):
            case requests.Judged(item):
                with self._door.slot():
                    reward = await self._door.examine(session, item)
            case requests.Given(reward, item):
                self._door.reward(session, reward, item)
        await _whole(request, send, msgspec.json.encode({"session": session, "reward": reward}))

    async def prompt(self, request: Request, send: Send) -> None:
        item = requests.item(request.path_params["item"])
        with self._door.slot():
            text = await self._door.item(item)
        await _whole(request, send, msgspec.json.encode({"item": item, "prompt": text}))

    async def give_up(self, request: Request, send: Send) -> None:
        session = _session(request)
        self._door.give_up(session)
        await _whole(request, send, msgspec.json.encode({"session": session, "reward": None}))

    async def _answer(
        self, request: Request, send: Send, session: str, asked: requests.Asked, prompt: Prompt, envelope: Envelope, *, tools: bool
    ) -> None:
        """Sample, and answer in one or as a stream."""
        headers = {"x-session": session}
        if ignored := [name for name in requests.IGNORED if getattr(asked, name) is not None]:
            headers["x-ignored"] = ", ".join(ignored)
        stream = _Stream(send, headers) if asked.stream else None
        parts: list[Read] = []

        async def write(read: Read) -> None:
            if stream is None:
                parts.append(read)
            else:
                await stream.send(envelope.part(read))

        async def gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        try:
            answer = await self._door.answer(
                session,
                prompt,
                budget=asked.budget,
                temperature=1.0 if asked.temperature is None else asked.temperature,
                stops=asked.stops,
                parser=Hermes() if tools else PlainText(),
                scored=asked.scored,
                write=write,
                gone=gone,
            )
        except DoorError as error:
            if stream is None or not stream.begun:
                raise
            await stream.end(answers.failed(error))
            return
        if answer is None:
            return
        if stream is None:
            await _whole(request, send, envelope.whole(parts, answer.finish, answer.usage), headers)
        else:
            await stream.end(envelope.last(answer.finish, answer.usage if asked.usage else None) + answers.DONE)

    def _served(self, asked: requests.Asked) -> None:
        if asked.model != self._door.settings.model:
            raise DoorError(
                404, "model_not_found", f"there is no model {asked.model!r}; ask for {self._door.settings.model!r}", param="model"
            )

    def _envelope(self, kind: type[Envelope], prefix: str, asked: requests.Asked) -> Envelope:
        return kind(number=f"{prefix}-{secrets.token_hex(12)}", model=asked.model, created=int(time.time()), scored=asked.scored)

    async def _body(self, request: Request) -> bytes:
        """The whole body. Raises DoorError where it is too large, or too slow."""
        settings, body = self._door.settings, bytearray()
        try:
            with self._door.waits.on("a request's body", owner="an agent", deadline_s=settings.body_s):
                async for data in request.stream():
                    body += data
                    if len(body) > settings.body_bytes:
                        raise DoorError(413, "too_large", f"a request may have {settings.body_bytes} bytes; this one has more")
        except WaitExpired as error:
            raise DoorError(408, "too_slow", f"the request was not here after {settings.body_s:g} s") from error
        return bytes(body)


class _Stream:
    """Server-sent events; the response begins with the first, so that what fails before has a status of its own."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send, self._headers = send, headers
        self.begun = False

    async def send(self, data: bytes, *, more: bool = True) -> None:
        if not self.begun:
            self.begun = True
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", **self._headers}
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def end(self, data: bytes) -> None:
        await self.send(data, more=False)


async def _whole(request: Request, send: Send, body: bytes, headers: dict[str, str] | None = None) -> None:
    await Response(body, 200, headers, _JSON)(request.scope, request.receive, send)


def _session(request: Request) -> str:
    """The session of a request: in its path, or in its header."""
    path, header = request.path_params.get("session"), request.headers.get("x-session")
    name: str | None = path or header
    if name is None:
        raise bad("no session: use the base URL /sessions/NAME/v1, or send the header x-session with each call", code="no_session")
    if path and header and path != header:
        raise bad(f"the path names session {path!r}, and the header x-session {header!r}; send one of them", code="two_sessions")
    if not _SESSION.fullmatch(name):
        raise bad(
            "a session's name is 1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit", code="session_name"
        )
    return name


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, DoorError)
    return error.response()


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = "there is nothing at this path" if error.status_code == 404 else "this path does not take this method"
    return DoorError(error.status_code, "no_route", what).response()


async def _left(request: Request, error: Exception) -> Response:
    return DoorError(400, "gone", "the request ended before its body did").response()


async def _failed(request: Request, error: Exception) -> Response:
    """Starlette raises the error again after this, so that the server logs it."""
    return DoorError(500, "internal_error", "the door failed; its log says why").response()
