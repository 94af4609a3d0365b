"""The embedded engine's async shell: streaming, interrupts, loads while decoding, idling by name,
cancellation."""

import copy
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import trio
import trio.testing
from reference import CONTEXT, greedy, random_model

from asyncrl.engines.embedded import EmbeddedEngine
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.protocol import Chunk, Idle, Request
from asyncrl.runtime.ipc.waits import Waits

torch.set_num_threads(1)
MODEL = random_model("qwen3")
WEIGHTS = dict(MODEL.named_parameters())


def engine_of(idle: Idle = nullcontext, chunk_tokens: int = 4) -> EmbeddedEngine:
    options = EmbeddedOptions(
        slots=4,
        context_tokens=CONTEXT,
        chunk_tokens=chunk_tokens,
        stop_ids=frozenset(),
        run_seed=0,
    )
    return EmbeddedEngine(copy.deepcopy(MODEL), options, idle=idle)


def request(rollout: int, tokens: int = 10) -> Request:
    return Request(rollout, 1, rollout, np.array([rollout, 5], np.int32), 0, tokens, 0.0)


class Stream:
    """Collects chunks; `until(n)` waits for n finishes."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._news = trio.Event()

    async def __call__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks += chunks
        self._news.set()
        await trio.lowlevel.checkpoint()

    async def until(self, finished: int) -> None:
        with trio.fail_after(30):
            while sum(c.finish != "" for c in self.chunks) < finished:
                self._news = trio.Event()
                await self._news.wait()

    async def some(self) -> None:
        with trio.fail_after(30):
            await self._news.wait()

    def ids(self, rollout: int) -> list[int]:
        return [int(i) for c in self.chunks if c.rollout == rollout for i in c.ids]


async def test_streams_and_idles_by_name() -> None:
    waits = Waits()
    engine, stream = engine_of(waits.idle_for), Stream()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, stream)
        await trio.testing.wait_all_tasks_blocked()
        engine.submit([request(i) for i in range(6)])
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not stream.chunks and engine.version is None
        assert await engine.load(0, WEIGHTS) >= 0
        await stream.until(6)
        await trio.testing.wait_all_tasks_blocked(0.05)
        engine.submit([request(9)])
        await stream.until(7)
        nursery.cancel_scope.cancel()
    assert {name for name, seconds in waits.idle().items() if seconds} == {"weights", "requests"}
    for i in (*range(6), 9):
        assert stream.ids(i) == greedy(MODEL, [i, 5], 10)
        assert max(len(c.ids) for c in stream.chunks if c.rollout == i) == 4


async def test_interrupt_and_load_while_decoding() -> None:
    engine, stream = engine_of(chunk_tokens=1000), Stream()
    await engine.load(0, WEIGHTS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, stream)
        engine.submit([request(0, 60), request(1, 60)])
        engine.interrupt([1])
        pause = await engine.load(1, WEIGHTS)
        await stream.until(2)
        nursery.cancel_scope.cancel()
    assert 0 <= pause < 30
    assert stream.ids(0) == greedy(MODEL, [0, 5], 60)
    assert [c.version for c in stream.chunks] == sorted(c.version for c in stream.chunks)
    assert {c.rollout: c.finish for c in stream.chunks}[1] == "interrupted" and engine.version == 1


async def test_a_bad_request_or_load_changes_nothing() -> None:
    engine, stream = engine_of(), Stream()
    await engine.load(0, WEIGHTS)
    with pytest.raises(ValueError, match="exceed the context"):
        engine.submit([request(0), request(1, 63)])
    with pytest.raises(ValueError, match="lack"):
        await engine.load(1, {"model.norm.weight": torch.ones(32)})
    with pytest.raises(ValueError, match="without weights"):
        await engine.load(1, None)
    assert engine.version == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, stream)
        engine.submit([request(2)])
        await stream.until(1)
        nursery.cancel_scope.cancel()
    assert {c.rollout for c in stream.chunks} == {2}


@pytest.mark.explore
async def test_cancelled_while_decoding_and_run_again() -> None:
    engine, stream = engine_of(chunk_tokens=2), Stream()
    await engine.load(0, WEIGHTS)
    engine.submit([request(0, 60)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, stream)
        await stream.some()
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, stream)
        await stream.until(1)
        nursery.cancel_scope.cancel()
    assert stream.ids(0)[-1] == greedy(MODEL, [0, 5], 60)[-1]


@pytest.mark.explore
def test_an_engine_multiplies_as_it_is_told() -> None:
    engine = EmbeddedEngine(
        copy.deepcopy(MODEL),
        EmbeddedOptions(
            slots=4,
            context_tokens=CONTEXT,
            chunk_tokens=4,
            stop_ids=frozenset(),
            run_seed=0,
            kv="keep",
            packed_from=3,
        ),
    )
    assert engine.packed_from == 3
    assert engine_of().packed_from in range(1, 6)
