"""An engine that stands still while its weights are written, against one that loads them."""

from __future__ import annotations

import pytest
import torch
import trio
import trio.testing
from test_embedded_engine import WEIGHTS, Stream, engine_of, request

from asyncrl.engines.protocol import DirectEngine


@pytest.mark.explore
async def test_what_is_written_into_an_engine_that_stands_still_is_as_if_it_were_loaded() -> None:
    other = {name: weight + 0.05 * weight.sign() for name, weight in WEIGHTS.items()}
    streams = []
    for direct in (False, True):
        engine, stream = engine_of(chunk_tokens=1), Stream()
        assert isinstance(engine, DirectEngine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run, stream)
            await engine.load(0, WEIGHTS)
            engine.submit([request(1, 3), request(2, 3)])
            await stream.until(2)
            if direct:
                held = await engine.quiesce()
                assert held.keys() == other.keys()
                with torch.no_grad():
                    for name, weight in other.items():
                        held[name].copy_(weight)
                assert await engine.adopt(7, pin=True) > 0
            else:
                await engine.load(7, other, pin=True)
            engine.submit([request(3, 9), request(4, 9)])
            await stream.until(4)
            nursery.cancel_scope.cancel()
        assert {c.version for c in stream.chunks if c.rollout in (3, 4) and len(c.ids)} == {7}
        streams.append(stream)
    for rollout in (1, 2, 3, 4):
        assert streams[0].ids(rollout) == streams[1].ids(rollout)


async def test_an_engine_that_stands_still_samples_nothing_until_it_goes_on() -> None:
    engine, stream = engine_of(chunk_tokens=1), Stream()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, stream)
        await engine.load(0, WEIGHTS)
        engine.submit([request(1, 30)])
        await stream.some()
        await engine.quiesce()
        await engine.quiesce()  # it does already
        await trio.testing.wait_all_tasks_blocked(0.1)
        before = len(stream.ids(1))
        engine.submit([request(2, 3)])
        await trio.testing.wait_all_tasks_blocked(0.3)
        assert len(stream.ids(1)) == before < 30 and not stream.ids(2)
        engine.resume()
        engine.resume()
        await stream.until(2)
        assert len(stream.ids(1)) == 30 and {c.version for c in stream.chunks} == {0}
        # and it stands still again
        await engine.quiesce()
        await engine.adopt(1)
        engine.submit([request(3, 2)])
        await stream.until(3)
        nursery.cancel_scope.cancel()
    assert stream.chunks[-1].version == 1
