"""The model's part of the gateway, as ASGI handlers. Invariant: every failed request is answered
with one sentence in its dialect's form.

    POST   /sessions/NAME/v1/…       a path of a dialect (`dialects`), with the key for calls
    GET    /sessions/NAME/v1/models, /sessions/NAME/v1/models/MODEL
    GET    /ready                    200 if calls are answered, else 503

The session is in the base URL, so that an agent needs no change. The temperature is the run's: that
of a call is ignored, and named in the header `x-ignored`, because an agent is trained at one
temperature and evaluated at another.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import msgspec
import trio
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Send

from asyncrl.agents.call_role import ROLE_HEADER
from asyncrl.agents.gateway.dialects.every_dialect import error_body, every_dialect
from asyncrl.agents.gateway.dialects.parameters import MESSAGES, named, role_of, shown
from asyncrl.agents.gateway.errors import GatewayError, bad
from asyncrl.agents.gateway.gateway import FULL, Gateway
from asyncrl.agents.gateway.inner_call import (
    REFERS,
    AnswerFacts,
    AnswerPart,
    CallEnd,
    Dialect,
    ModelCall,
    SampledChoice,
)
from asyncrl.agents.gateway.other_call import OtherAnswer, OtherCall, OtherModels
from asyncrl.agents.gateway.played_session import PlayedSession
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.agents.gateway.prompt_reader import Prompt
from asyncrl.agents.gateway.sent_replies import RESPONSES, as_message
from asyncrl.runtime.ipc.waits import WaitExpired

ENDS = (FULL, "context_length_exceeded")
"""Codes of calls that are refused because the episode has reached its limit."""
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_JSON = "application/json"

LARGE = 8
"""Requests with images whose bodies are in memory at a time."""

Handler = Callable[[Request, Send], Awaitable[None]]
Gone = Callable[[], Awaitable[None]]
"""Returns when the client has disconnected."""


class CallRoutes:
    """The handlers of the model's calls."""

    def __init__(
        self, gateway: Gateway, sessions: PlayedSessions, others: OtherModels | None = None
    ) -> None:
        self._gateway, self._sessions, self._others = gateway, sessions, others
        self._large = trio.CapacityLimiter(LARGE)

    async def ready(self, request: Request) -> Response:
        return Response(status_code=200 if self._gateway.ready else 503)

    async def models(self, request: Request, send: Send) -> None:
        await whole(request, send, models_body(self._gateway.settings.model, *self._other_names))

    async def one_model(self, request: Request, send: Send) -> None:
        name: str = request.path_params["model"]
        await whole(request, send, msgspec.json.encode(model_object(name)))

    def spoken(self, dialect: Dialect) -> Handler:
        """The handler of a dialect's calls."""
        return partial(self._call, dialect)

    def counted(self, dialect: Dialect) -> Handler:
        """The handler of a dialect's route that counts tokens."""
        return partial(self._count, dialect)

    async def _call(self, dialect: Dialect, request: Request, send: Send) -> None:
        with self._called(request) as session, self._gateway.slot():
            async with self._room(request):
                body = await self.body(request)
                if await self._forwarded(dialect.path, request, send, session, body):
                    return
                call, prompt = await self._read(dialect, request, session, body)
                del body  # its images are kept
            with ExitStack() as slots:
                for _ in range(call.choices - 1):
                    slots.enter_context(self._gateway.slot())
                await self._answer(dialect, request, send, session, call, prompt)

    async def _count(self, dialect: Dialect, request: Request, send: Send) -> None:
        assert dialect.counts is not None, "this route exists only for dialects that count tokens"
        with self._called(request) as session, self._gateway.slot():
            async with self._room(request):
                body = await self.body(request)
                if await self._forwarded(dialect.counts[0], request, send, session, body):
                    return
                _, prompt = await self._read(dialect, request, session, body)
                del body
            await whole(request, send, dialect.counts[1](len(prompt.ids)))

    @property
    def _other_names(self) -> list[str]:
        return [] if self._others is None else self._others.names

    async def _forwarded(
        self, path: str, request: Request, send: Send, session: PlayedSession, body: bytes
    ) -> bool:
        """Answer a call of a model that is not trained; return False for the trained one. The
        agent's clock runs meanwhile, as for a tool. Raises GatewayError."""
        if self._others is None or not self._others.names:
            return False
        model = await self._gateway.reader.model(body)
        if model not in self._others.names:
            self._others.refuse(model)
            return False
        call = OtherCall(model, path, request.headers, body)
        answer: OtherAnswer | None = None
        failed: GatewayError | None = None

        async def leave() -> None:
            await self.gone(request)
            scope.cancel()

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(leave)
                try:
                    answer = await self._others.answer(session, call)
                except GatewayError as error:
                    failed = error
                nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if answer is not None:
            response = Response(answer.body, answer.status, {"content-type": answer.type})
            await response(request.scope, request.receive, send)
        return True

    async def _read(
        self, dialect: Dialect, request: Request, session: PlayedSession, body: bytes
    ) -> tuple[ModelCall, Prompt]:
        """The call in a request, and its context. Raises GatewayError."""
        version = request.headers.get(dialect.version_header or "-")
        if version is not None and version not in dialect.versions:
            raise bad(
                f"{dialect.version_header} must be {' or '.join(dialect.versions)}, not "
                f"{version!r}",
                dialect.version_header,
                "unknown_version",
            )
        call = await self._gateway.reader.call(session, dialect, body)
        if (role := request.headers.get(ROLE_HEADER)) is not None:
            call = msgspec.structs.replace(call, role=role_of(role, ROLE_HEADER))
        call = _with_referred(session, call)
        if call.after:
            before = session.sent.chat(call.after)
            if before is None:
                raise bad(
                    f"no answer {call.after!r} is kept in this session (it keeps the last "
                    f"{RESPONSES}, unless store is false); send all messages as input",
                    "previous_response_id",
                )
            messages = [*before, *call.messages]
            call = msgspec.structs.replace(call, messages=named(messages))
        if call.head:
            whole_chat = [*call.head, *call.messages]
            call = msgspec.structs.replace(call, messages=whole_chat)
        if len(call.messages) > MESSAGES:
            raise bad(f"a call may have {MESSAGES} messages", "messages")
        if call.tools and self._gateway.format.hides_tools:
            call = msgspec.structs.replace(call, ignored=(*call.ignored, "tools"))
        self._gateway.warn(call.ignored)
        return call, await self._gateway.reader.prompt(session, call)

    async def _answer(
        self,
        dialect: Dialect,
        request: Request,
        send: Send,
        session: PlayedSession,
        call: ModelCall,
        prompt: Prompt,
    ) -> None:
        """Sample, and answer as a whole or as a stream."""
        facts = AnswerFacts(secrets.token_hex(12), int(time.time()), len(prompt.ids))
        envelope = dialect.envelope(call, facts)
        headers = {"x-ignored": shown(call.ignored)} if call.ignored else {}
        stream = _Stream(send, headers) if call.stream else None
        parts: list[list[AnswerPart]] = [[] for _ in range(call.choices)]
        ends: list[CallEnd | None] = [None] * call.choices

        async def sample(index: int, left: Gone) -> None:
            async def write(read: AnswerPart) -> None:
                if stream is None or call.keeps:
                    parts[index].append(read)
                if stream is not None and (sent := envelope.part(index, read)):
                    await stream.send(sent)

            end = await self._gateway.answer(session, call, prompt, write=write, gone=left)
            if end is not None and stream is not None:
                await stream.send(envelope.last(index, end))
            ends[index] = end

        try:
            await self._sample_all(request, call.choices, sample)
        except GatewayError as error:
            if stream is None or not stream.begun:
                raise
            await stream.end(envelope.failed(error))
            return
        done = [end for end in ends if end is not None]
        if len(done) < call.choices:
            return  # the client has left
        choices = [SampledChoice(*both) for both in zip(parts, done, strict=True)]
        body = envelope.whole(choices) if stream is None else b""
        if call.keeps and envelope.id:
            said = as_message([delta for part in parts[0] for delta in part.deltas])
            own = call.messages[len(call.head) :]
            session.sent.keep(envelope.id, [*own, said], envelope.items)
        if stream is None:
            await whole(request, send, body, headers)
        else:
            await stream.end(envelope.done(done))

    async def _sample_all(
        self, request: Request, choices: int, sample: Callable[[int, Gone], Awaitable[None]]
    ) -> None:
        """Sample all choices at the same time. Raises the GatewayError of the first that fails."""
        if choices == 1:
            await sample(0, lambda: self.gone(request))
            return
        left = trio.Event()
        failed: list[GatewayError] = []

        async def watch() -> None:
            await self.gone(request)
            left.set()

        async def one(index: int) -> None:
            try:
                await sample(index, left.wait)
            except GatewayError as error:
                failed.append(error)
                scope.cancel()

        async with trio.open_nursery() as watching:
            watching.start_soon(watch)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    for index in range(choices):
                        nursery.start_soon(one, index)
            watching.cancel_scope.cancel()
        if failed:
            raise failed[0]

    def session(self, request: Request) -> PlayedSession:
        """The session of a request. Raises GatewayError (404) if no agent plays it."""
        return self._sessions.named(session_of(request))

    @contextmanager
    def _called(self, request: Request) -> Iterator[PlayedSession]:
        """The session of a call that runs in the block. Raises GatewayError if it takes no
        calls."""
        session = self.session(request)
        if session.rewarded:
            raise GatewayError(
                422, "rewarded", "the episode already has its reward, so it takes no more calls"
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

    async def body(self, request: Request) -> bytes:
        """The whole body. Raises GatewayError if it is too large, or too slow."""
        settings, body = self._gateway.settings, bytearray()
        declared = int(request.headers.get("content-length", "0"))
        most = settings.most_bytes if declared > settings.body_bytes else settings.body_bytes
        # by the declared length, so that a body that is too large is not read at all
        if declared > most:
            raise _too_large(most)
        try:
            with self._gateway.waits.on(
                "a request's body", owner="an agent", deadline_s=settings.body_s
            ):
                async for data in request.stream():
                    body += data
                    if len(body) > most:
                        raise _too_large(most)
        except WaitExpired as error:
            raise GatewayError(
                408, "too_slow", f"the request had not arrived after {settings.body_s:g} s"
            ) from error
        return bytes(body)

    @asynccontextmanager
    async def _room(self, request: Request) -> AsyncIterator[None]:
        """Room for the body of a call: few bodies with images are in memory at a time. Raises
        GatewayError (503) if there is no room in time."""
        settings = self._gateway.settings
        if int(request.headers.get("content-length", "0")) <= settings.body_bytes:
            yield
            return
        try:
            with self._gateway.waits.on(
                "room for a large request", owner="an agent", deadline_s=settings.body_s
            ):
                await self._large.acquire()
        except WaitExpired as error:
            raise GatewayError(
                503, "busy", f"{LARGE} large requests are being read; try again", retry_s=1
            ) from error
        try:
            yield
        finally:
            self._large.release()


def _with_referred(session: PlayedSession, call: ModelCall) -> ModelCall:
    """The call, with the items of earlier answers that it names. Raises GatewayError (400)."""
    if not any(REFERS in message for message in call.messages):
        return call
    try:
        found = [session.sent.resolved(message) for message in call.messages]
    except KeyError as error:
        raise bad(
            f"no item {error.args[0]!r} is kept in this session (it keeps those of the last "
            f"{RESPONSES} answers, unless store is false); send the item itself",
            "input",
        ) from None
    messages = named([message for message in found if message is not None])
    if not messages:
        raise bad("input has no message", "input")
    return msgspec.structs.replace(call, messages=messages)


class _Stream:
    """Server-sent events; the response begins with the first, so that a call that fails
    before it has a status of its own."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send, self._headers = send, headers
        self._turn = trio.Lock()  # several choices are written to one socket
        self.begun = False

    async def send(self, data: bytes, *, more: bool = True) -> None:
        async with self._turn:
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


def model_object(name: str) -> dict[str, Any]:
    """A model as OpenAI's and Anthropic's clients know it."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "asyncrl",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
    }


def models_body(*names: str) -> bytes:
    """The answer of `/v1/models`."""
    listed = {"object": "list", "data": [model_object(name) for name in names]}
    ends = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return msgspec.json.encode(listed | ends)


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
        413, "too_large", f"a request may have {most} bytes here, and this one has more"
    )


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return _said(request, error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    paths = ", ".join(dialect.path for dialect in every_dialect())
    what = (
        "there is nothing at this path: calls are POST to /sessions/NAME/v1, followed by one of "
        f"{paths}"
        if error.status_code == 404
        else "this path does not support this method"
    )
    return _said(request, GatewayError(error.status_code, "no_route", what))


async def _left(request: Request, error: Exception) -> Response:
    return _said(
        request, GatewayError(400, "gone", "the request ended before its body was complete")
    )


async def _failed(request: Request, raised: Exception) -> Response:
    """Answer with 500. Starlette then raises the error again, so that the server logs it."""
    error = GatewayError(500, "internal_error", "the gateway failed; see its log")
    return _said(request, error)


def _said(request: Request, error: GatewayError) -> Response:
    """An error in the form of the path's dialect."""
    return error.response(error_body(request.url.path, error))


HANDLERS = {
    GatewayError: _refused,
    HTTPException: _no_route,
    ClientDisconnect: _left,
    Exception: _failed,
}
"""Answers to what a handler raises."""
