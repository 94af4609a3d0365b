"""The HTTP of one server. Invariant: whatever the server does, a call returns a typed answer or
raises a named error, in bounded time and memory. Compressed answers are refused: 3 MB can unpack to
gigabytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import NoReturn, TypeVar

import httpx2
import msgspec
import trio

from asyncrl.engines.servers.errors import Misread, RequestRefused, ServerGone
from asyncrl.engines.servers.server_types import SAID, Garbled, ServerAnswer, decode
from asyncrl.escape import escaped
from asyncrl.words import whole

ANSWER_BYTES = 1 << 20
"""Bytes of an ordinary answer, such as a description of the server or the result of a command."""
IDLE_S = 1.0
"""Seconds after which an idle connection is not used again. uvicorn, under SGLang and vLLM, closes
one after 5 s, as httpx does: an order that crosses the close is lost without an answer."""
READY_WITHIN_S = 5.0
"""Seconds for a readiness check, which a running server answers at once."""
CHECKSUM_BYTES = 1 << 26
"""Bytes of the checksums of all ranks' tensors: 100 to 200 for each tensor of a rank."""
REFUSAL_BYTES = 1 << 16
"""Bytes of a refusal that are read."""

T = TypeVar("T")


class HttpConnection:
    """Calls of the server at `url`, through `open`. Every method raises ServerError: ServerGone,
    RequestRefused or Misread."""

    def __init__(
        self, http: httpx2.AsyncClient, url: str, deadline_s: float, silence_s: float
    ) -> None:
        self._http, self.url, self._deadline_s, self.silence_s = http, url, deadline_s, silence_s

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
        """The connection for the length of the block; the arguments are those of a client's
        `open`."""
        address = url.rstrip("/")
        async with httpx2.AsyncClient(
            base_url=address,
            headers={"content-type": "application/json", "accept-encoding": "identity"}
            | ({"authorization": f"Bearer {api_key}"} if api_key else {}),
            timeout=httpx2.Timeout(None, connect=deadline_s, read=silence_s),
            limits=httpx2.Limits(keepalive_expiry=IDLE_S),
            transport=transport,
            trust_env=False,
        ) as http:
            yield HttpConnection(http, address, deadline_s, silence_s)

    @asynccontextmanager
    async def stream(
        self, path: str, body: Mapping[str, object] | None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream the answer to `body`, or to a GET where that is None; use it inside of `named`.
        Raises RequestRefused where the status is not 200."""
        async with self._response(path, body) as response:
            if response.status_code != 200:
                self._refuse(path, response.status_code, await _refusal(response))
            async with aclosing(response.aiter_bytes()) as parts:
                yield parts

    @asynccontextmanager
    async def _response(
        self, path: str, body: Mapping[str, object] | None
    ) -> AsyncIterator[httpx2.Response]:
        method, content = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
        async with self._http.stream(method, path, content=content) as response:
            encoding = response.headers.get("content-encoding", "identity")
            if encoding != "identity":
                raise Garbled(
                    f"answered in the encoding {escaped(repr(encoding), SAID)}, and was asked for "
                    "none"
                )
            yield response

    async def status(self, path: str, seconds: float) -> int:
        """The HTTP status of `path` within `seconds`, even of a refusal."""
        with self.within(path, seconds):
            async with self._response(path, None) as response:
                await _beginning(response, REFUSAL_BYTES)
                return response.status_code

    async def until(
        self, reached: Callable[[], Awaitable[bool]], failed: str, seconds: float
    ) -> None:
        """Poll until the condition holds: a server gives no notice. Raises ServerGone after
        `seconds`, with what it `failed` to do."""
        pause = 0.05
        with trio.move_on_after(seconds):
            while not await reached():
                await trio.sleep(pause)
                pause = min(2 * pause, 1.0)
            return
        raise ServerGone(f"{self.url} {failed} within {seconds:g} s; the server's log says why")

    async def get(self, path: str, kind: type[T]) -> T:
        """The answer of `path`."""
        with self.named(path):
            return decode(kind, await self._ask(path, None, self._deadline_s, ANSWER_BYTES))

    async def _ask(
        self, path: str, body: Mapping[str, object] | None, seconds: float, most: int
    ) -> bytes:
        """The answer within `seconds`, of at most `most` bytes."""
        with self.within(path, seconds):
            async with self.stream(path, body) as parts:
                answer = bytearray()
                async for data in parts:
                    answer += data
                    if len(answer) > most:
                        raise Garbled(f"answered with more than {most} bytes")
                return bytes(answer)

    async def post(self, path: str, body: Mapping[str, object], kind: type[T], most: int) -> T:
        """The answer to `body`, within the deadline, of at most `most` bytes."""
        with self.named(path):
            return decode(kind, await self._ask(path, body, self._deadline_s, most))

    async def tell(self, path: str, body: Mapping[str, object], *, slow: bool = False) -> None:
        """Post `body`; if `slow`, wait as long as a stream may be silent."""
        await self._ask(path, body, self.silence_s if slow else self._deadline_s, ANSWER_BYTES)

    async def control(
        self, path: str, body: Mapping[str, object], most: int = ANSWER_BYTES
    ) -> ServerAnswer:
        """Post a weights command: slow, and answered with success or failure, in at most `most`
        bytes."""
        with self.named(path):
            answer = decode(ServerAnswer, await self._ask(path, body, self.silence_s, most))
        if not answer.success:
            raise RequestRefused(f"{self.url}{path} was refused: {answer.reason()}", 200)
        return answer

    def _refuse(self, path: str, status: int, body: bytes) -> NoReturn:
        try:
            reason = decode(ServerAnswer, body).reason()
        except Garbled:
            reason = escaped(body.decode(errors="replace").strip(), SAID)
        raise RequestRefused(
            f"{self.url}{path} was refused with {status}: "
            f"{reason.strip() or 'no reason was given'}",
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
        """Convert errors of transport and decoding into our own. It opens no deadline of trio, so a
        generator may yield inside."""
        try:
            yield
        except httpx2.TimeoutException as error:
            silent = f"{self.url}{path} was silent for too long ({type(error).__name__})"
            raise ServerGone(f"{silent}; the server hangs or is overloaded") from error
        except httpx2.TransportError as error:
            reason = escaped(str(error), SAID) or type(error).__name__
            broken = f"{self.url}{path}: the connection failed ({reason})"
            raise ServerGone(f"{broken}; the server is not there or died") from error
        except Garbled as error:
            raise Misread(f"{self.url}{path} {error}") from error


async def _refusal(response: httpx2.Response) -> bytes:
    """The text of a refusal. It is not read to its end, so that its connection is not reused:
    uvicorn closes it after a failed call, and the next call would cross the close."""
    length = response.headers.get("content-length", "")
    said = whole(length)
    return await _beginning(response, REFUSAL_BYTES if said is None else min(said, REFUSAL_BYTES))


async def _beginning(response: httpx2.Response, most: int) -> bytes:
    """The first `most` bytes of a response, or fewer where it has no more."""
    beginning = bytearray()
    async with aclosing(response.aiter_bytes()) as parts:
        async for data in parts:
            beginning += data
            if len(beginning) >= most:
                break
    return bytes(beginning[:most])
