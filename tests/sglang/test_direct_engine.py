"""An engine whose servers the trainer writes, over a made-up server: it stands still in between,
and nothing leaves that was sampled meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import trio
import trio.testing
from fake_sglang import URL, FakeServer, token

from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import CanaryEngine, Chunk, DirectEngine, Request
from asyncrl.engines.sglang.direct_engine import DirectSglangEngine
from asyncrl.engines.sglang.sglang_client import SglangClient


class _Server:
    """A server that stands still and goes on in virtual time."""

    def __init__(self, fake: FakeServer) -> None:
        self.fake, self.said = fake, list[str]()

    async def pause(self) -> None:
        self.said.append("pause")
        self.fake.paused = True
        await trio.sleep(0.2)

    async def resume(self) -> None:
        self.said.append("resume")
        await self.fake.load(int(self.fake.version), 0.0)

    async def adopt(self, version: int, reference: Sequence[float]) -> None:
        assert list(reference) == [-float(version)]
        self.said.append(f"adopt {version}")
        await self.fake.load(version, 0.1)


async def test_it_stands_still_until_it_adopts_or_resumes_and_tokens_bear_their_versions(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fake = FakeServer()
    server, chunks = _Server(fake), list[Chunk]()

    async def emit(found: Sequence[Chunk]) -> None:
        await trio.lowlevel.checkpoint()
        assert not fake.paused
        chunks.extend(found)

    async def adopt(version: int) -> float:
        engine.expect(version, [-float(version)])
        return await engine.adopt(version)

    async with SglangClient.open(URL, transport=fake) as client, trio.open_nursery() as nursery:
        engine = DirectSglangEngine(
            client,
            [server],
            EngineOptions(slots=2, context_tokens=400, chunk_tokens=8),
            vocab_size=97,
            stop_ids=frozenset({96}),
        )
        assert isinstance(engine, DirectEngine) and isinstance(engine, CanaryEngine)
        nursery.start_soon(engine.run, emit)
        engine.submit([Request(1, 0, 1, np.array([1], np.int32), 0, 300, 1.0)])
        await engine.quiesce()
        assert await adopt(0) > 0.2 and engine.version == 0
        await trio.sleep(0.5)
        assert chunks
        for version in (1, None, 2):  # None: nothing was sent after all
            await engine.quiesce()
            before = len(chunks)
            await trio.sleep(5.0)
            assert len(chunks) == before
            if version is None:
                engine.resume()
                engine.resume()  # of one that goes on nothing comes
            else:
                await adopt(version)
            await trio.sleep(0.5)  # tokens may wait for the server to say their version
        engine.resume()  # it decodes
        await trio.sleep(10.0)
        nursery.cancel_scope.cancel()
    said = ["pause", "adopt 0", "pause", "adopt 1", "pause", "resume", "pause", "adopt 2"]
    assert server.said == said
    assert {chunk.version for chunk in chunks} == {0, 1, 2} and chunks[-1].finish == "length"
    ids = np.concatenate([chunk.ids for chunk in chunks]).tolist()
    assert ids == [token(1, i) for i in range(300)]
    for chunk in chunks:
        assert set(chunk.behaviour.tolist()) <= {-float(chunk.version)}


async def test_one_that_must_stand_still_again_before_it_went_on_stands_still(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fake = FakeServer()
    server = _Server(fake)

    async def emit(found: Sequence[Chunk]) -> None:
        raise AssertionError(found)

    async with SglangClient.open(URL, transport=fake) as client, trio.open_nursery() as nursery:
        engine = DirectSglangEngine(
            client,
            [server],
            EngineOptions(slots=2, context_tokens=400, chunk_tokens=8),
            vocab_size=97,
            stop_ids=frozenset({96}),
        )
        nursery.start_soon(engine.run, emit)
        with trio.move_on_after(0.1):  # an abort while it is paused
            await engine.quiesce()
        engine.resume()
        await engine.quiesce()
        await trio.sleep(1.0)
        assert fake.paused and server.said == ["pause", "pause"]
        nursery.cancel_scope.cancel()
