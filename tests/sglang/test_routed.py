"""Two servers behind a router are one engine: requests through the router, aborts to whoever has
them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import cycle
from typing import Any

import httpx2
import numpy as np
import pytest
import trio
from fake_sglang import FakeServer, token
from trio.testing import MockClock

from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.engines.servers.errors import ServerGone
from asyncrl.engines.servers.gather import gather
from asyncrl.engines.servers.server_engine import ServerEngine
from asyncrl.engines.sglang.routed import Routed
from asyncrl.engines.sglang.sglang_client import SglangClient


class Router(httpx2.AsyncBaseTransport):
    """Passes requests on in turn, and nothing else."""

    def __init__(self, servers: list[FakeServer]) -> None:
        self._turn = cycle(servers)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path != "/generate":
            return httpx2.Response(404)
        return await next(self._turn).handle_async_request(request)


class World:
    def __init__(self, engine: ServerEngine, servers: list[FakeServer]) -> None:
        self.engine, self.servers = engine, servers
        self.chunks: list[Chunk] = []

    async def emit(self, chunks: Any) -> None:
        self.chunks += chunks
        await trio.lowlevel.checkpoint()

    def finishes(self) -> dict[int, str]:
        return {chunk.rollout: chunk.finish for chunk in self.chunks if chunk.finish}

    def tokens(self, rollout: int) -> list[tuple[int, int]]:
        """(version, id) of each."""
        return [
            (chunk.version, id)
            for chunk in self.chunks
            if chunk.rollout == rollout
            for id in chunk.ids.tolist()
        ]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    servers = [FakeServer(), FakeServer()]
    async with (
        SglangClient.open("http://a:1", transport=servers[0]) as a,
        SglangClient.open("http://b:1", transport=servers[1]) as b,
        SglangClient.open("http://router:1", transport=Router(servers)) as router,
        trio.open_nursery() as nursery,
    ):

        async def load(version: int, weights: Any, _: Any, stop: Callable[[], None]) -> float:
            stop()
            await gather(*(partial(server.load, version, 0.5) for server in servers))
            return 0.5

        routed = Routed(router, [a, b])
        engine = ServerEngine(
            routed,
            load,
            EngineOptions(slots=8, context_tokens=400, chunk_tokens=4),
            vocab_size=97,
            stop_ids=frozenset(),
        )
        found = World(engine, servers)
        nursery.start_soon(engine.run, found.emit)
        yield found
        nursery.cancel_scope.cancel()


def ask(rollout: int, tokens: int = 40) -> Request:
    return Request(rollout, 0, rollout, np.array([rollout], np.int32), 0, tokens, 1.0, None)


async def test_requests_are_shared_out_and_weights_reach_every_server(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        await w.engine.load(0, {})
        w.engine.submit([ask(rollout) for rollout in range(8)])
        await trio.sleep(0.2)
        assert await w.engine.load(1, {}) == 0.5
        await trio.sleep(5)
        assert len(w.finishes()) == 8
        assert [len(server.paths("/generate")) for server in w.servers] == [4, 4]
        assert [server.version for server in w.servers] == ["1", "1"]
        for rollout in range(8):
            versions, ids = zip(*w.tokens(rollout), strict=True)
            assert list(ids) == [token(rollout, i) for i in range(40)]
            assert sorted(versions) == list(versions) and set(versions) == {0, 1}


async def test_an_interrupt_reaches_the_server_that_has_the_request(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        await w.engine.load(0, {})
        w.engine.submit([ask(rollout, 300) for rollout in range(8)])
        await trio.sleep(0.5)
        w.engine.interrupt([2, 3])
        await trio.sleep(0.5)
        assert w.finishes() == {2: "interrupted", 3: "interrupted"}
        assert [len(server.paths("/abort_request")) for server in w.servers] == [2, 2], (
            "each is asked: which of them has it is the router's"
        )
        assert sum(len(server.running) for server in w.servers) == 6


async def test_all_are_ready_or_it_is_not(autojump_clock: MockClock) -> None:
    async with world() as w:
        assert await w.engine._client.ready()
        w.servers[1].paused = True
        assert not await w.engine._client.ready()


async def test_the_first_error_of_calls_at_the_same_time_is_raised_alone(
    autojump_clock: MockClock,
) -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await trio.sleep(10)
        finally:
            ended.append("slow")

    async def fail() -> None:
        await trio.sleep(1)
        raise ServerGone("gone")

    with pytest.raises(ServerGone, match="gone"):
        await gather(slow, fail)
    assert ended == ["slow"] and trio.current_time() == pytest.approx(1, abs=1e-3)
    assert await gather() == []
