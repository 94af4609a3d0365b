"""The metrics over HTTP, in a thread with an event loop of its own: it answers also when the
coordinator does not. Invariant: whoever scrapes, however often, takes a small share of the
process's time, and a bounded number of its descriptors.
"""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial

import msgspec
import trio
from prometheus_client import CollectorRegistry
from prometheus_client import exposition as prometheus
from prometheus_client.openmetrics import exposition as openmetrics

from asyncrl.runtime.httpd.asgi import HttpRefusal, Receive, Scope, Send
from asyncrl.runtime.httpd.http_limits import HttpLimits
from asyncrl.runtime.httpd.http_server import HttpServer
from asyncrl.runtime.ipc.waits import WaitExpired, Waits

PATH = "/metrics"
LIMITS = HttpLimits(connections=1, strangers=32, head_s=5.0, part_s=10.0)
"""Nobody is known to this server: each connection has one answer."""
BEGIN_S = 60.0
"""Seconds in which the thread must have begun."""
REST = 20
"""For as many times as a page took to make, no other is made."""
PAGE_S = 10.0
"""Seconds that a scrape waits for its page at most."""

_OWNER = "the metrics"


class _Page(msgspec.Struct, frozen=True):
    begun: float
    body: bytes


class _Pages:
    """An ASGI application with one page, in one version of each of Prometheus' two formats. Who
    comes before a page is begun is given that page: so it is never older than the question, however
    many ask."""

    def __init__(self, registry: CollectorRegistry, waits: Waits) -> None:
        self._registry, self._waits = registry, waits
        self._pages: dict[str, _Page] = {}
        self._turn, self._due = trio.Lock(), -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != PATH:
            await _answer(send, 404, "text/plain", f"the metrics are at {PATH}\n".encode())
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, "text/plain", b"metrics are read by GET\n")
        else:
            accepted = next((v for name, v in scope["headers"] if name == b"accept"), b"")
            try:
                with self._waits.on("a page of metrics", owner=_OWNER, deadline_s=PAGE_S):
                    kind, body = await self._page(accepted.decode("latin-1"))
            except WaitExpired:
                await _answer(send, 503, "text/plain", b"too many ask for metrics\n")
            else:
                await _answer(send, 200, kind, body)

    async def _page(self, accepted: str) -> tuple[str, bytes]:
        asked = trio.current_time()
        encode, kind = _format(accepted)
        async with self._turn:
            page = self._pages.get(kind)
            if page is None or page.begun < asked:
                await trio.sleep_until(self._due)
                begun = trio.current_time()
                self._pages[kind] = page = _Page(begun, encode(self._registry))
                now = trio.current_time()
                self._due = now + REST * (now - begun)
        return kind, page.body


def _format(accepted: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """The encoder for an Accept header, and its content type. What the client says of versions and
    escaping is not echoed: a page is kept for each type."""
    if "application/openmetrics-text" in accepted:
        return openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST
    return prometheus.generate_latest, prometheus.CONTENT_TYPE_PLAIN_0_0_4


@contextmanager
def serving(
    registry: CollectorRegistry, port: int, host: str, refused: Callable[[HttpRefusal], None]
) -> Iterator[None]:
    """Answer scrapes of `registry` inside the block. `refused` is called, in another thread, for
    each connection that had to be closed. Raises OSError if the port is taken."""
    listening = socket.create_server((host, port))
    begun: Future[Callable[[], None]] = Future()
    thread = threading.Thread(
        target=partial(trio.run, _serve, registry, listening, refused, begun), name="metrics"
    )
    thread.start()
    end = begun.result(timeout=BEGIN_S)
    try:
        yield
    finally:
        with suppress(trio.RunFinishedError):
            end()
        thread.join()


async def _serve(
    registry: CollectorRegistry,
    listening: socket.socket,
    refused: Callable[[HttpRefusal], None],
    begun: Future[Callable[[], None]],
) -> None:
    close, waits = trio.Event(), Waits()
    server = HttpServer(
        _Pages(registry, waits),
        LIMITS,
        known=lambda headers: False,
        refused=refused,
        waits=waits,
        owner=_OWNER,
    )
    begun.set_result(partial(trio.lowlevel.current_trio_token().run_sync_soon, close.set))
    await server.run(trio.SocketListener(trio.socket.from_stdlib_socket(listening)), close.wait)


async def _answer(send: Send, status: int, kind: str, body: bytes) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
