"""Whatever clients do, each server gives back every connection, refuses by name, never has more
than its limits, and answers who comes next: the gateway, the metrics, the page, and a slow one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import trio
from gateway_world import CONTEXT, MODEL, write_chat
from http_world import KEY, LIMITS, Network, Stream, World, request
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from trio.testing import MockClock, memory_stream_pair

from asyncrl.agents.gateway.app import application
from asyncrl.agents.gateway.gateway import Gateway
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.bundled.bundled_model import VOCABULARY
from asyncrl.explain.metrics_server import _Pages
from asyncrl.explain.views.page_gate import PageGate
from asyncrl.explain.views.run_page import RunPage
from asyncrl.runtime.httpd.asgi import Application, Headers, HttpRefusal
from asyncrl.runtime.httpd.http_limits import HttpLimits
from asyncrl.runtime.httpd.http_server import HttpServer
from asyncrl.runtime.ipc.waits import Waits


class Served(NamedTuple):
    """A server: its application, who is known to it, its limits, a request that it answers well,
    the headers of who is known, and the paths that its clients ask for."""

    app: Callable[[Waits], Application]
    known: Callable[[Headers], bool]
    limits: HttpLimits
    well: bytes
    key: str
    paths: tuple[str, ...]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Served]:
    folder = tmp_path_factory.mktemp("servers")
    sessions = PlayedSessions(b"k")
    tokenizer = write_chat(folder)

    def gateway(waits: Waits) -> Application:
        limits = Settings(MODEL, CONTEXT, VOCABULARY, calls=2, call_s=20.0, body_s=9.0)
        return application(Gateway(sessions, tokenizer, limits, waits), sessions, None)

    def page(waits: Waits) -> PageGate:
        return PageGate(RunPage(Path(folder, "none"), waits=waits), key="k", port=1)

    cookie, bearer = "cookie: asyncrl_page_1=k\r\n", "authorization: Bearer k\r\n"
    calls = "/sessions/r1-1/v1/chat/completions"
    return {
        "a slow one": Served(
            lambda waits: World(LIMITS).app,
            World.known,
            LIMITS,
            request(body="x", headers=KEY),
            KEY,
            ("/", "/slow", "/fail", "/unread", "/large", "/stream"),
        ),
        "the gateway": Served(
            gateway,
            lambda headers: (b"authorization", b"Bearer k") in headers,
            LIMITS,
            request("/ready", method="GET"),
            bearer,
            ("/ready", calls, "/none"),
        ),
        "the metrics": Served(
            lambda waits: _Pages(CollectorRegistry(), waits),
            lambda headers: False,
            LIMITS,
            request("/metrics", method="GET"),
            "",
            ("/metrics", "/none"),
        ),
        "the page": Served(
            page,
            page(Waits()).known,
            msgspec.structs.replace(LIMITS, makes_room=True),
            request("/", headers=cookie, method="GET"),
            cookie,
            ("/", "/assets/page.js", "/part/none"),
        ),
    }


class Client(NamedTuple):
    """Comes at a moment, asks for some paths, with the key or not, all ahead or one after the
    other, the last one cut after a share of its bytes; reads or not; and leaves in some way after
    so many seconds."""

    comes: float
    paths: tuple[int, ...]
    known: bool
    ahead: bool
    share: float
    reads: bool
    leaves: str
    stays: float


CLIENTS = st.lists(
    st.builds(
        Client,
        comes=st.sampled_from([0.0, 1.0, 1.2, 30.0]),
        paths=st.lists(st.integers(0, 6), max_size=4).map(tuple),
        known=st.booleans(),
        ahead=st.booleans(),
        share=st.sampled_from([1.0, 0.0, 0.1, 0.5, 0.99]),
        reads=st.booleans(),
        leaves=st.sampled_from(["closes", "ends its half", "stays"]),
        stays=st.sampled_from([0.0, 0.05, 3.0, 100.0]),
    ),
    min_size=1,
    max_size=12,
)
ONE = Client(0.0, (0,), True, True, 1.0, True, "stays", 0.0)
LONG_S = 400.0
"""After so many seconds each deadline of a connection is over."""


class Crowd:
    """Clients of one server, and a witness of its connections."""

    def __init__(self, served: Served) -> None:
        self.served, self.network, self.waits = served, Network(), Waits()
        self.refused: list[HttpRefusal] = []
        self.streams: list[Any] = []
        self.server = HttpServer(
            served.app(self.waits),
            served.limits,
            known=served.known,
            refused=self.refused.append,
            waits=self.waits,
            owner="a test",
        )

    async def run(self, clients: list[Client]) -> None:
        close = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.server.run, self.network, close.wait)
            async with trio.open_nursery() as crowd:
                for client in clients:
                    crowd.start_soon(self._be, client)
            await trio.sleep(LONG_S)
            assert self.server.connections == 0, "each is given back"
            assert not self.waits.table()
            for _ in range(self.served.limits.connections):
                assert (await self._well()).startswith(b"HTTP/1.1 200")
            close.set()

    async def _well(self) -> bytes:
        stream = self._connect()
        await stream.send_all(self.served.well)
        with trio.move_on_after(1.0):
            return bytes(await stream.receive_some())
        return b"nothing"

    def _connect(self) -> Stream:
        client, server = memory_stream_pair()
        self.streams.append(server)
        self.network.come(server)
        return client

    def _look(self) -> None:
        limits, server = self.served.limits, self.server
        assert len(server._strangers) <= limits.strangers
        assert len(server._clients) <= limits.connections
        assert not set(server._strangers) & set(server._clients)

    async def _be(self, client: Client) -> None:
        await trio.sleep(client.comes)
        stream = self._connect()
        headers = self.served.key if client.known else ""
        asked = [
            request(self.served.paths[at % len(self.served.paths)], "{}", headers=headers)
            for at in client.paths
        ]
        if asked:
            asked[-1] = asked[-1][: int(client.share * len(asked[-1]))]
        if client.ahead:
            asked = [b"".join(asked)]
        try:
            async with trio.open_nursery() as nursery:
                if client.reads:
                    nursery.start_soon(self._read, stream)
                for one in asked:
                    await stream.send_all(one)
                    await trio.sleep(0.2)
                    self._look()
                await trio.sleep(client.stays)
                if client.leaves == "ends its half":
                    await stream.send_eof()
                    await trio.sleep(LONG_S)
                nursery.cancel_scope.cancel()
            if client.leaves == "closes":
                await stream.aclose()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _read(self, stream: Stream) -> None:
        while await stream.receive_some():
            pass


NAMES = ("a slow one", "the gateway", "the metrics", "the page")


@pytest.mark.parametrize("name", NAMES)
@example(clients=[ONE, ONE, ONE, ONE, ONE._replace(comes=1.0, known=False)])
@example(
    clients=[ONE._replace(paths=(1, 2, 3), leaves="closes", comes=at, stays=0.05) for at in (0, 1)]
)
@example(clients=[ONE._replace(paths=(0, 0), share=0.5, known=known) for known in (True, False)])
@example(clients=[ONE._replace(reads=False, paths=(at,), known=False) for at in range(7)])
@example(clients=[ONE._replace(share=0.99, reads=False, known=known) for known in (False, True)])
@given(clients=CLIENTS)
def test_each_connection_is_given_back(
    clients: list[Client], name: str, servers: dict[str, Served]
) -> None:
    trio.run(partial(Crowd(servers[name]).run, clients), clock=MockClock(autojump_threshold=0))
