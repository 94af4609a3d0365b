"""One request and its answer, between a client and an ASGI application. Invariant: a client
that does not read, or sends a body in tiny pieces, counts as one that has left."""

from __future__ import annotations

from email.utils import formatdate
from urllib.parse import unquote

import h11
import trio

from asyncrl.runtime.httpd.asgi import Event, HttpRefusal, Scope

CHUNK = 16 << 10
"""Bytes read at a time."""
_AHEAD = 64 << 10
"""Bytes that a client may send ahead of its answer; more are left in the network."""
_PIECES, _PIECE_BYTES = 256, 64
"""A body may come in `_PIECES` pieces, and in more if they average `_PIECE_BYTES` bytes."""


class HttpExchange:
    """The two callables that ASGI gives an application. `keep`: another request may follow.
    `status` is that of the answer, 0 if none began."""

    def __init__(
        self,
        http: h11.Connection,
        stream: trio.abc.HalfCloseableStream,
        request: h11.Request,
        *,
        keep: bool,
        part_s: float,
    ) -> None:
        self._http, self._stream, self._keep, self._part_s = http, stream, keep, part_s
        self._head = request.method == b"HEAD"
        self._pieces = self._bytes = self._ahead = 0
        self._held = b""
        self._lost = False
        self._watch: trio.CancelScope | None = None
        self.status = 0
        self.refusal: HttpRefusal | None = None
        sent = dict(request.headers)
        self._read = self._empty = False
        if b"transfer-encoding" not in sent and not int(sent.get(b"content-length", b"0")):
            http.next_event()  # there is no body, and so it has ended
            self._empty = True
        path, _, query = request.target.partition(b"?")
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "http",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [*request.headers],
            "client": None,
            "server": None,
        }

    @property
    def again(self) -> bool:
        """True if another request may come on this connection."""
        ended = self._http.our_state is self._http.their_state is h11.DONE
        return ended and self._keep and not self._lost

    async def receive(self) -> Event:
        """The next piece of the body; after the last one, wait until the client has left."""
        await trio.lowlevel.checkpoint()
        if self._lost or self._read:
            await self._gone()
            return {"type": "http.disconnect"}
        body = b""
        try:
            if not self._empty and isinstance(event := await self._piece(), h11.Data):
                body = bytes(event.data)
            else:
                self._read = True
        except (h11.RemoteProtocolError, trio.BrokenResourceError, trio.ClosedResourceError):
            self._lose()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": not self._read}

    async def send(self, event: Event) -> None:
        """Send a part of the answer; nothing if the client has left."""
        if self._lost:
            return
        if event["type"] == "http.response.start":
            self.status = event["status"]
            headers = [*event.get("headers", []), (b"date", formatdate(usegmt=True).encode())]
            if not self._keep or self._http.their_state is not h11.DONE:
                headers.append((b"connection", b"close"))
            # sent with what follows
            self._held = self._http.send(h11.Response(status_code=self.status, headers=headers))
            return
        data, self._held = self._held, b""
        if (body := event.get("body", b"")) and not self._head:
            data += self._http.send(h11.Data(data=body))
        if not event.get("more_body", False):
            data += self._http.send(h11.EndOfMessage())
        await self._write(data)

    async def _piece(self) -> h11.Event:
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await self._write(self._http.send(go_on))
        while (event := self._http.next_event()) is h11.NEED_DATA:
            with trio.move_on_after(self._part_s) as scope:
                data = bytes(await self._stream.receive_some(CHUNK))
            if scope.cancelled_caught:
                self.refusal = "silent"
                raise h11.RemoteProtocolError("a body that does not come")
            self._http.receive_data(data)
        if isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > _PIECES and self._bytes < self._pieces * _PIECE_BYTES:
                raise h11.RemoteProtocolError("a body in tiny pieces")
        assert isinstance(event, h11.Event)
        return event

    async def _write(self, data: bytes) -> None:
        with trio.move_on_after(self._part_s) as scope:
            try:
                await self._stream.send_all(data)
                return
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
        if scope.cancelled_caught:
            self.refusal = "slow"
        self._lose()

    def _lose(self) -> None:
        self._lost = True
        if self._watch is not None:
            self._watch.cancel()

    async def _gone(self) -> None:
        """Return when the client has left. What it sends ahead is kept for its turn."""
        if self._lost:
            return
        with trio.CancelScope() as self._watch:
            try:
                while self._ahead < _AHEAD:
                    data = bytes(await self._stream.receive_some(CHUNK))
                    if not data:
                        break
                    self._ahead += len(data)
                    self._http.receive_data(data)
                else:  # a write to it will show if it has left
                    await trio.sleep_forever()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
        self._lost = True
