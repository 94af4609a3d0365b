"""The protocol of engines as checks that any engine must pass, by what leaves it alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from asyncrl.engines.protocol import AveragingEngine, Chunk, Engine, Request

VOCABULARY, CONTEXT = 40, 64
"""An engine that is checked has these, and two slots or more."""


class Emitted:
    """Every chunk that an engine gave, by rollout."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._news = trio.Event()

    async def __call__(self, chunks: Sequence[Chunk]) -> None:
        assert chunks, "an empty frame costs as much as a full one"
        self.chunks += chunks
        self._news.set()
        await trio.lowlevel.checkpoint()

    def of(self, rollout: int) -> list[Chunk]:
        return [chunk for chunk in self.chunks if chunk.rollout == rollout]

    async def until(self, reached: Any) -> None:
        with trio.fail_after(60):
            while not reached():
                self._news = trio.Event()
                await self._news.wait()

    async def ended(self, *rollouts: int) -> None:
        await self.until(lambda: all(self.of(r) and self.of(r)[-1].finish for r in rollouts))


def request(
    rollout: int,
    tokens: int,
    *,
    known: Sequence[int] = (3, 1, 4),
    prefix: int = 0,
    version: int | None = None,
) -> Request:
    ids = np.array(known, np.int32)
    return Request(rollout, 1, rollout, ids, prefix, tokens, 1.0, version)


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[Emitted]:
    emitted = Emitted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, emitted)
        yield emitted
        nursery.cancel_scope.cancel()


def check_chunks(asked: Request, chunks: Sequence[Chunk], versions: set[int]) -> None:
    """They tile the response from its prefix on, within the budget, and the last alone ends it."""
    at = asked.prefix_tokens
    for chunk in chunks:
        assert chunk.attempt == asked.attempt and chunk.start == at
        assert chunk.ids.dtype == np.int32 and chunk.behaviour.dtype == np.float32
        assert len(chunk.ids) == len(chunk.behaviour)
        assert np.all((chunk.ids >= 0) & (chunk.ids < VOCABULARY))
        assert np.all(np.isfinite(chunk.behaviour) & (chunk.behaviour <= 0))
        assert not len(chunk.ids) or chunk.version in versions
        at += len(chunk.ids)
    assert at - asked.prefix_tokens <= asked.max_new_tokens
    assert [bool(chunk.finish) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    if chunks[-1].finish == "length":
        assert at - asked.prefix_tokens == asked.max_new_tokens


async def check_protocol(
    engine: Engine, *, weights: Mapping[str, Any] | None, keeps_versions: bool
) -> None:
    """Submit, load, pin and interrupt a fresh engine of `VOCABULARY` and `CONTEXT`. `weights` are
    what its `load` takes, for every version alike."""
    assert engine.slots >= 2 and engine.version is None
    for wrong in (
        request(0, 0),
        request(0, CONTEXT),
        request(0, 4, known=[VOCABULARY]),
        request(0, 4, known=[-1]),
        request(0, 4, known=[]),
        request(0, 4, prefix=3),
    ):
        with pytest.raises(ValueError):
            engine.submit([wrong])
    async with running(engine) as emitted:
        first = [request(i, 12) for i in range(engine.slots + 2)]
        engine.submit(first)
        engine.interrupt([10_000])
        await trio.testing.wait_all_tasks_blocked()
        assert not emitted.chunks, "nothing is sampled before the first load"

        assert await engine.load(0, weights) >= 0 and engine.version == 0
        await emitted.ended(*(asked.rollout for asked in first))
        for asked in first:
            check_chunks(asked, emitted.of(asked.rollout), {0})

        goes_on, stopped = request(100, 20, known=[3, 1, 4, 1], prefix=1), request(101, 40)
        engine.submit([goes_on, stopped])
        engine.interrupt([101])
        await emitted.ended(100, 101)
        check_chunks(goes_on, emitted.of(100), {0})
        check_chunks(stopped, emitted.of(101), {0})
        assert emitted.of(101)[-1].finish in ("interrupted", "stop")

        await engine.load(1, weights, pin=True)
        await engine.load(2, weights)
        assert engine.version == 2
        old, new, gone = request(200, 8, version=1), request(201, 8), request(202, 8, version=7)
        engine.submit([old, new, gone])
        await emitted.ended(200, 201, 202)
        check_chunks(old, emitted.of(200), {1})
        check_chunks(new, emitted.of(201), {2})
        assert (emitted.of(200)[-1].finish == "interrupted") is not keeps_versions
        assert emitted.of(202)[-1].finish == "interrupted" and not len(emitted.of(202)[-1].ids)

        engine.unpin(1)
        late = request(203, 8, version=1)
        engine.submit([late])
        await emitted.ended(203)
        assert emitted.of(203)[-1].finish == "interrupted" and not len(emitted.of(203)[-1].ids)
        if isinstance(engine, AveragingEngine):
            assert await engine.keep(3, weights) >= 0 and engine.version == 2
            averaged, beside = request(300, 8, version=3), request(301, 8)
            engine.submit([averaged, beside])
            await emitted.ended(300, 301)
            check_chunks(averaged, emitted.of(300), {3})
            check_chunks(beside, emitted.of(301), {2})
            assert len(emitted.of(300)[-1].ids)
        assert len({chunk.rollout for chunk in emitted.chunks if chunk.finish}) == sum(
            bool(chunk.finish) for chunk in emitted.chunks
        ), "each request ends once"
