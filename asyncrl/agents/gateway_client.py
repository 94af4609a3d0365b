"""A client of the gateway for the requests of an episode: JSON over HTTP/1.1, on one connection.
Invariant: one request runs at a time, so an answer belongs to the latest request.

Each attempt at an episode has a process of its own, in which everything happens for the first time.
So what a client does once, each episode pays for: five calls with five rewards are 31 ms of a
core with `openai` and `httpx2`, 18 with `httpx2` alone, and 6 with h11, which is all that this is.
A user's function still gets the official client.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import h11

from asyncrl.words import whole

HEAD_BYTES, BODY_BYTES = 2**16, 2**26
"""Bytes of an answer, at most: its head, and its body."""
PIECE = 2**16


class GatewayLost(OSError):
    """The gateway closed the connection before its answer was complete, or sent no valid
    answer; the text says which."""


class GatewayAnswer(NamedTuple):
    """An answer: its status, the seconds after which to retry if it names them, and its body,
    {} if that is not a JSON object."""

    status: int
    retry_s: float | None
    body: Mapping[str, Any]

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def error(self) -> Mapping[str, Any]:
        """The `message` and `code` of a refusal; {} if it has none."""
        refusal = self.body.get("error")
        return refusal if isinstance(refusal, dict) else {}


class GatewayClient:
    """A connection to the gateway at the host and port of `url`, opened when it is needed, and
    again if the gateway has closed it.

    async with GatewayClient("http://127.0.0.1:8000/sessions/episode-3/v1") as gateway:
        answer = await gateway.ask("GET", "/v1/sessions/episode-3/notes/results", key)
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"the gateway's URL is {url!r}; it begins with http:// and a host")
        self._host, self._port = parts.hostname, parts.port or 80
        self._named = parts.netloc.rpartition("@")[2]
        self._asking = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._http = h11.Connection(h11.CLIENT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    async def ask(
        self,
        method: str,
        path: str,
        key: str,
        body: Any = None,
        *,
        within_s: float | None,
    ) -> GatewayAnswer:
        """Ask, with `body` as JSON unless it is None, and wait for the answer, whatever its status.
        Raises OSError if the gateway cannot be reached, GatewayLost, and TimeoutError after
        `within_s` seconds (None: the caller has a clock of its own)."""
        text = b"" if body is None else json.dumps(body).encode()
        head = [
            ("host", self._named),
            ("authorization", f"Bearer {key}"),
            ("content-type", "application/json"),
            ("content-length", str(len(text))),
        ]
        request = h11.Request(method=method, target=path, headers=head)
        async with self._asking, asyncio.timeout(within_s):
            try:
                reader, writer = await self._opened()
                writer.write(self._encoded(request, text))
                await writer.drain()
                answer = await self._answer(reader)
                if self._http.our_state is self._http.their_state is h11.DONE:
                    self._http.start_next_cycle()
                else:
                    self._close()
            except BaseException:
                self._close()  # half an answer may be on its way
                raise
            return answer

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The connection, if it is open still, else a new one."""
        if self._streams is not None:
            for _ in range(2):  # the loop sees that the gateway closed it, and tells the stream
                await asyncio.sleep(0)
            if not self._streams[0].at_eof():
                return self._streams
            self._close()
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self._streams = await asyncio.open_connection(self._host, self._port)
        return self._streams

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    def _encoded(self, request: h11.Request, text: bytes) -> bytes:
        parts = [request, *([h11.Data(data=text)] if text else []), h11.EndOfMessage()]
        return b"".join(self._http.send(part) or b"" for part in parts)

    async def _answer(self, reader: asyncio.StreamReader) -> GatewayAnswer:
        status, retry_s, text = 0, None, bytearray()
        try:
            while not isinstance(event := await self._event(reader), h11.EndOfMessage):
                if isinstance(event, h11.Response):
                    status, retry_s = event.status_code, _retry_s(event)
                elif isinstance(event, h11.Data):
                    text += event.data
                    if len(text) > BODY_BYTES:
                        raise GatewayLost(f"its answer is longer than {BODY_BYTES} bytes")
        except h11.RemoteProtocolError as error:
            raise GatewayLost(f"its answer is not complete ({error})") from error
        return GatewayAnswer(status, retry_s, _object(bytes(text)))

    async def _event(self, reader: asyncio.StreamReader) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await reader.read(PIECE))
        return event


def _retry_s(response: h11.Response) -> float | None:
    """The seconds of the header `retry-after`, as the gateway writes it; None without one."""
    values = [value for name, value in response.headers if name == b"retry-after"]
    return whole(values[0].decode("latin-1")) if values else None


def _object(text: bytes) -> dict[str, Any]:
    """The JSON object of a body; {} if it is not one."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
