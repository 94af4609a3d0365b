"""An HTTP/1.1 server. Invariant: no client, whatever it sends, stops the server, and the resources
that clients use are bounded.

A client is a stranger until one of its requests is admitted (has the key). A stranger gets one
answer, and is evicted when too many others connect. Each delays the next connection, so that most
of the process's time stays for known clients. No maintained HTTP/1.1 server for trio is limited to
this: hypercorn also speaks HTTP/2 in the clear and crashes on input that it does not understand,
and uvicorn needs asyncio.
"""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import trio

from asyncrl.runtime.httpd.asgi import Application, Headers, HttpRefusal
from asyncrl.runtime.httpd.client_connection import ClientConnection, CrowdedError
from asyncrl.runtime.httpd.http_limits import HttpLimits
from asyncrl.runtime.ipc.waits import Pulse, WaitExpired, Waits
from asyncrl.runtime.logs import Seldom

STRANGER_S = 0.025
"""Seconds by which a stranger delays the next connection: each costs about half a millisecond of
processor time, so that all together cost a fiftieth of a core."""
DESCRIPTOR_S = 1.0
"""Seconds after which the server tries again to get a descriptor, unless one of its connections is
closed before."""
FLUSH_S = 0.25
"""Seconds in which answers that are complete when the server closes must be sent."""

Listener = trio.abc.Listener[trio.abc.HalfCloseableStream]
logger = logging.getLogger(__name__)


class HttpServer:
    """A server in front of `app`. `known` tells from a request's headers whether its client is
    known. `refused` is called with the reason for each connection that had to be closed. `owner`
    names the server in `waits`."""

    def __init__(
        self,
        app: Application,
        limits: HttpLimits,
        *,
        known: Callable[[Headers], bool],
        refused: Callable[[HttpRefusal], None],
        waits: Waits,
        owner: str,
    ) -> None:
        self._app, self._limits, self._known, self._refused = app, limits, known, refused
        self._waits, self._owner = waits, owner
        self._strangers: dict[trio.CancelScope, ClientConnection] = {}  # the oldest first
        self._clients: dict[trio.CancelScope, ClientConnection] = {}
        self._freed, self._left = Pulse(), Pulse()
        self._seldom = Seldom()
        self._due = -math.inf  # when the next connection is accepted

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._strangers) + len(self._clients)

    async def run(self, listener: Listener, close: Callable[[], Awaitable[None]]) -> None:
        """Answer at `listener`, which this closes, until `close` returns. Answers in
        progress then have `FLUSH_S` seconds."""
        async with listener, trio.open_nursery() as nursery:
            accepting = trio.CancelScope()
            nursery.start_soon(self._accept, listener, nursery, accepting)
            await close()
            accepting.cancel()
            await listener.aclose()
            with trio.move_on_after(FLUSH_S):
                while self._finish():
                    await self._left.wait()
            nursery.cancel_scope.cancel()

    def _finish(self) -> bool:
        """Close idle connections. True if others are still being answered."""
        every = [*self._strangers.items(), *self._clients.items()]
        for scope, connection in every:
            if connection.waiting:
                scope.cancel()
        return bool(every)

    async def _accept(
        self, listener: Listener, nursery: trio.Nursery, accepting: trio.CancelScope
    ) -> None:
        with accepting:
            while True:
                await trio.sleep_until(self._due)
                try:
                    stream = await listener.accept()
                except OSError as error:
                    await self._descriptor(error)
                    continue
                if len(self._strangers) >= self._limits.strangers:
                    self._evict()
                scope = trio.CancelScope()
                connection = ClientConnection(
                    stream,
                    self._app,
                    self._limits,
                    partial(self._admit, scope),
                    self._report,
                )
                self._strangers[scope] = connection
                nursery.start_soon(self._attend, scope, stream, connection)

    async def _attend(
        self,
        scope: trio.CancelScope,
        stream: trio.abc.HalfCloseableStream,
        connection: ClientConnection,
    ) -> None:
        refusal: HttpRefusal | None = None
        try:
            with scope:
                await connection.run()
            refusal = connection.refusal
        except Exception as error:  # noqa: BLE001  # it is reported
            # a fault of this server ends the connection that met it, and no other
            self._report("connection", error)
            refusal = "failed"
        finally:
            if self._clients.pop(scope, None) is None:
                self._strangers.pop(scope, None)
                now = trio.current_time()
                self._due = min(
                    max(self._due, now) + STRANGER_S, now + self._limits.strangers * STRANGER_S
                )
            await trio.aclose_forcefully(stream)
            self._freed.set()
            self._left.set()
        if refusal is not None:
            self._refused(refusal)

    def _admit(self, scope: trio.CancelScope, headers: Headers) -> bool:
        """As for `ClientConnection`."""
        if not self._known(headers):
            return False
        if scope in self._strangers:
            if len(self._clients) >= self._limits.connections:
                self._make_room()
            self._clients[scope] = self._strangers.pop(scope)
        return True

    def _make_room(self) -> None:
        """Close the known client that has been idle longest. Raises CrowdedError if none may be."""
        idle = [
            (connection.idle_from, scope, connection)
            for scope, connection in self._clients.items()
            if connection.waiting
        ]
        if not self._limits.makes_room or not idle:
            raise CrowdedError
        _, scope, connection = min(idle, key=lambda one: one[0])
        del self._clients[scope]
        connection.refusal = "crowded"
        scope.cancel()

    def _report(self, what: str, error: Exception) -> None:
        """Log a fault with its traceback: a client may cause it again and again."""
        if (end := self._seldom.due(f"{what} {type(error).__name__}")) is not None:
            logger.error("a %s failed%s", what, end, exc_info=error)

    def _evict(self) -> None:
        scope, connection = next(iter(self._strangers.items()))
        del self._strangers[scope]
        connection.refusal = "crowded"
        scope.cancel()

    async def _descriptor(self, error: OSError) -> None:
        """Wait until a connection may be accepted again."""
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            self._due = trio.current_time() + STRANGER_S  # that one connection was broken
            return
        self._refused("descriptors")
        if self._strangers:
            self._evict()
        with (
            suppress(WaitExpired),
            self._waits.on("a file descriptor", owner=self._owner, deadline_s=DESCRIPTOR_S),
        ):
            await self._freed.wait()
