"""The HTTP of one SGLang server. Invariant: whatever the server does, an answer is typed, or a
named error in bounded time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TypeVar

import httpx2
import msgspec
import trio

from asyncrl.engines.sglang.errors import Misread, RequestRefused, ServerGone
from asyncrl.engines.sglang.http_types import Garbled, ServerAnswer, decode

T = TypeVar("T")


class HttpConnection:
    """Calls of the server at `url`, through `open`. Every method raises SglangError: ServerGone,
    RequestRefused or Misread."""

    def __init__(
        self, http: httpx2.AsyncClient, url: str, deadline_s: float, silence_s: float
    ) -> None:
        self._http, self.url, self._deadline_s, self._silence_s = http, url, deadline_s, silence_s

    @staticmethod
    @asynccontextmanager
    async def open(
        url: str,
        *,
        api_key: str,
        deadline_s: float,
        silence_s: float,
        transport: httpx2.AsyncBaseTransport | None,
    ) -> AsyncIterator[HttpConnection]:
        """The connection for the length of the block; the arguments are those of `Client.open`."""
        address = url.rstrip("/")
        async with httpx2.AsyncClient(
            base_url=address,
            headers={"content-type": "application/json"}
            | ({"authorization": f"Bearer {api_key}"} if api_key else {}),
            timeout=httpx2.Timeout(None, connect=deadline_s, read=silence_s),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            transport=transport,
            trust_env=False,
        ) as http:
            yield HttpConnection(http, address, deadline_s, silence_s)

    def stream(
        self, path: str, body: Mapping[str, object]
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        """The response to `body`, to be read as it comes; use it inside of `named`."""
        return self._http.stream("POST", path, content=msgspec.json.encode(body))

    async def status(self, path: str, seconds: float) -> int:
        """The status of `path` within `seconds`, whatever it is."""
        with self.within(path, seconds):
            return (await self._http.get(path)).status_code

    async def get(self, path: str, kind: type[T]) -> T:
        """The answer of `path`."""
        with self.within(path, self._deadline_s):
            response = await self._http.get(path)
            self.refuse(path, response.status_code, response.content)
            return decode(kind, response.content)

    async def _send(self, path: str, body: Mapping[str, object], seconds: float) -> bytes:
        with self.within(path, seconds):
            response = await self._http.post(path, content=msgspec.json.encode(body))
            self.refuse(path, response.status_code, response.content)
            return response.content

    async def post(self, path: str, body: Mapping[str, object], kind: type[T]) -> T:
        """The answer to `body`, within the deadline."""
        with self.named(path):
            return decode(kind, await self._send(path, body, self._deadline_s))

    async def tell(self, path: str, body: Mapping[str, object], *, slow: bool = False) -> None:
        """Post `body`; where `slow`, as long as a stream may be silent."""
        await self._send(path, body, self._silence_s if slow else self._deadline_s)

    async def control(self, path: str, body: Mapping[str, object]) -> ServerAnswer:
        """Post what concerns weights: slow, and answered with its success or failure."""
        with self.named(path):
            answer = decode(ServerAnswer, await self._send(path, body, self._silence_s))
        if not answer.success:
            raise RequestRefused(f"{self.url}{path} was refused: {answer.said()}", 200)
        return answer

    def refuse(self, path: str, status: int, body: bytes) -> None:
        """Raise RequestRefused, but for the status 200."""
        if status == 200:
            return
        try:
            said = decode(ServerAnswer, body).said()
        except Garbled:
            said = body[:300].decode(errors="replace")
        raise RequestRefused(
            f"{self.url}{path} was refused with {status}: {said.strip() or 'no reason was given'}",
            status,
        )

    @contextmanager
    def within(self, path: str, seconds: float) -> Iterator[None]:
        """Errors as in `named`, for at most `seconds`."""
        with self.named(path):
            try:
                with trio.fail_after(seconds):
                    yield
            except trio.TooSlowError as error:
                raise ServerGone(
                    f"{self.url}{path} did not answer within {seconds:g} s; the server hangs or "
                    "is overloaded"
                ) from error

    @contextmanager
    def named(self, path: str) -> Iterator[None]:
        """Raise errors of the transport and of reading under our names. No deadline of trio is open
        in here, so a generator may yield inside."""
        try:
            yield
        except httpx2.TimeoutException as error:
            silent = f"{self.url}{path} was silent for too long ({type(error).__name__})"
            raise ServerGone(f"{silent}; the server hangs or is overloaded") from error
        except httpx2.TransportError as error:
            broken = f"{self.url}{path}: the connection failed ({error or type(error).__name__})"
            raise ServerGone(f"{broken}; the server is not there or died") from error
        except Garbled as error:
            raise Misread(f"{self.url}{path} {error}") from error
