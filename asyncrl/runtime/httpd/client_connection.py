"""One client of an HTTP server: its requests, one after the other. Invariant: each wait for the
client has a deadline, nothing but HTTP/1.0 and HTTP/1.1 is spoken, and whatever the client sends
ends this connection and nothing else.

h11 reads and writes the protocol; this gives it bytes, deadlines and bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import h11
import trio

from asyncrl.runtime.httpd.asgi import Application, Headers, HttpRefusal
from asyncrl.runtime.httpd.http_exchange import CHUNK, HttpExchange
from asyncrl.runtime.httpd.http_limits import HttpLimits

_LINGER_S, _LINGER_BYTES = 1.0, 1 << 20
"""Seconds and bytes for which a connection is read before it is closed. Without this the network
would discard an answer that the client has not read."""
_BLANK = re.compile(rb"\n\r?\n")
_SENTENCES = {
    400: b"this is not an HTTP request",
    408: b"the head of the request was not here in time",
    431: b"the head of the request is too long",
    500: b"the server failed; its log says why",
    503: b"too many clients are connected; try again",
    505: b"HTTP/1.1 is spoken here",
}


class CrowdedError(Exception):
    """The limit of known clients is reached."""


class ClientConnection:
    """A connection. `admit` tells from a request's headers whether its client is known; it
    raises CrowdedError if there is no room for one more. An unknown client has one answer. `report`
    is called with what failed, by a fault that is not the client's."""

    def __init__(
        self,
        stream: trio.abc.HalfCloseableStream,
        app: Application,
        limits: HttpLimits,
        admit: Callable[[Headers], bool],
        report: Callable[[str, Exception], None],
    ) -> None:
        self._stream, self._app, self._limits, self._admit = stream, app, limits, admit
        self._report = report
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self.waiting = True
        """True while no request is being answered."""
        self.idle_from = trio.current_time()
        """The time at which it began to wait for a request."""
        self.refusal: HttpRefusal | None = None

    async def run(self) -> None:
        """Answer until the client leaves or is refused."""
        try:
            with trio.move_on_after(self._limits.head_s) as scope:
                request = await self._request()
            if scope.cancelled_caught:
                await self._refuse("silent", 408)
                return
            while request is not None:
                self.waiting = False
                if not await self._answer(request):
                    await self._linger()
                    return
                self._http.start_next_cycle()
                self.waiting, self.idle_from, request = True, trio.current_time(), None
                with trio.move_on_after(self._limits.idle_s):
                    request = await self._request()
        except h11.RemoteProtocolError as error:
            await self._refuse("malformed", error.error_status_hint)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the client has left

    async def _request(self) -> h11.Request | None:
        """The next request's head; None if the client leaves before it."""
        head, lines = bytearray(), 0
        data = bytes(self._http.trailing_data[0])  # came with the request before
        while True:
            # h11 accepts a head of any number of lines if it comes in one piece
            before = len(head)
            head += data
            blank = _BLANK.search(head, max(0, before - 2))
            lines += head.count(b"\n", before, blank.start() + 1 if blank else len(head))
            if lines > self._limits.head_lines:
                raise h11.RemoteProtocolError("too many lines", error_status_hint=431)
            if (event := self._http.next_event()) is not h11.NEED_DATA:
                break
            data = bytes(await self._stream.receive_some(CHUNK))
            self._http.receive_data(data)
        if not isinstance(event, h11.Request):
            return None
        names = {name for name, _ in event.headers}
        if {b"transfer-encoding", b"content-length"} <= names:
            raise h11.RemoteProtocolError("a body has one length")
        if event.http_version not in (b"1.0", b"1.1"):
            raise h11.RemoteProtocolError("another version", error_status_hint=505)
        return event

    async def _answer(self, request: h11.Request) -> bool:
        """Let the application answer. True if another request may come."""
        try:
            known = self._admit([*request.headers])
        except CrowdedError:
            await self._refuse("busy", 503, whole=request.method != b"HEAD")
            return False
        exchange = HttpExchange(
            self._http, self._stream, request, keep=known, part_s=self._limits.part_s
        )
        try:
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except Exception as error:  # noqa: BLE001  # it is reported
            # a fault of the application in one request does not affect the next one
            self._report("request", error)
            await self._refuse("failed", 500, whole=request.method != b"HEAD")
            return False
        self.refusal = exchange.refusal
        if self.refusal is None and not known and exchange.status >= 400:
            self.refusal = "key" if exchange.status == 401 else "request"
        return exchange.again

    async def _refuse(self, reason: HttpRefusal, status: int, *, whole: bool = True) -> None:
        """Tell the client why this connection is closed, if that is still possible; only by its
        head unless the answer is `whole`."""
        self.refusal = reason
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        text = _SENTENCES.get(status, _SENTENCES[400])
        headers = {"content-type": "text/plain", "content-length": str(len(text))}
        head = h11.Response(
            status_code=status if status in _SENTENCES else 400,
            headers=[*headers.items(), ("connection", "close")],
        )
        gone = suppress(trio.BrokenResourceError, trio.ClosedResourceError)
        with gone, trio.move_on_after(_LINGER_S):
            await self._stream.send_all(
                self._http.send(head)
                + (self._http.send(h11.Data(data=text)) if whole else b"")
                + self._http.send(h11.EndOfMessage())
            )
            await self._linger()

    async def _linger(self) -> None:
        """Read for a moment what the client still sends."""
        with trio.move_on_after(_LINGER_S):
            await self._stream.send_eof()
            left = _LINGER_BYTES
            while left > 0 and (data := await self._stream.receive_some(CHUNK)):
                left -= len(data)
