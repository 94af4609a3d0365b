"""A generator before an engine that serves others, too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import trio
from gateway_world import Says, say, scripted
from trio.testing import MockClock

from asyncrl.engines.protocol import Chunk, Request
from asyncrl.gateway.engine_generator import FIRST, EngineGenerator, first_number


def chunk(rollout: int, ids: int = 1, behaviour: int = 1) -> Chunk:
    return Chunk(rollout, 1, 0, 0, np.zeros(ids, np.int32), np.zeros(behaviour, np.float32))


def test_chunks_of_others_come_back() -> None:
    generator = EngineGenerator(scripted(Says(say("x"))))
    others = [chunk(0), chunk(FIRST - 1)]
    assert generator.take([others[0], chunk(FIRST), others[1]]) == others


def test_no_two_doors_of_a_run_number_alike() -> None:
    """Numbers are int64, and those of 2³² calls of a gateway lie before those of any other."""
    firsts = sorted(
        first_number(place, life)
        for place in (0, 1, 2, 1023, (1 << 18) - 1)
        for life in (0, 1, 50, 4095)
    )
    assert (
        firsts[0] == FIRST
        and min(b - a for a, b in itertools.pairwise(firsts)) >= 1 << 32
        and firsts[-1] + (1 << 32) <= 1 << 63
    )


async def test_no_two_answers_draw_alike_and_each_gets_its_own(autojump_clock: MockClock) -> None:
    says = Says(say("one"), say("two"))
    engine = scripted(says)
    await engine.load(0, None)
    generator = EngineGenerator(engine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generator.run)
        with (
            generator.generate("s", [1, 2], max_new_tokens=9, temperature=1.0, stops=()) as one,
            generator.generate("s", [1, 2], max_new_tokens=9, temperature=1.0, stops=()) as two,
        ):
            texts = [
                bytes(
                    token for piece in [p async for p in answer] for token in piece.ids.tolist()[:3]
                )
                for answer in (two, one)
            ]
        nursery.cancel_scope.cancel()
    assert texts == [b"two", b"one"]
    assert (
        len({request.key for request in says.requests})
        == len({request.rollout for request in says.requests})
        == 2
    )
    assert all(request.rollout >= FIRST and request.prefix_tokens == 0 for request in says.requests)


async def test_leaving_early_interrupts(autojump_clock: MockClock) -> None:
    interrupted: list[int] = []
    engine = scripted(Says(say("x" * 100, pace=1.0)))
    await engine.load(0, None)
    stop = engine.interrupt
    engine.interrupt = lambda rollouts: (interrupted.extend(rollouts), stop(rollouts))[1]  # type: ignore[method-assign]
    generator = EngineGenerator(engine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generator.run)
        with generator.generate("s", [1], max_new_tokens=100, temperature=1.0, stops=()) as answer:
            async for _ in answer:
                break
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert interrupted == [FIRST]


async def test_a_request_that_cannot_be_is_none() -> None:
    generator = EngineGenerator(scripted(Says(say("x"))))
    with (
        pytest.raises(ValueError, match="outside the vocabulary"),
        generator.generate("s", [9999], max_new_tokens=1, temperature=1.0, stops=()),
    ):
        pass
    with (
        pytest.raises(ValueError, match="parallel"),
        generator.generate("s", [1], max_new_tokens=1, temperature=1.0, stops=()),
    ):
        generator.take([Chunk(FIRST + 1, 1, 0, 0, np.zeros(1, np.int32), np.zeros(0, np.float32))])


async def test_an_engine_of_its_own_samples_for_nobody_else(autojump_clock: MockClock) -> None:
    engine = scripted(Says(say("x")))
    await engine.load(0, None)
    engine.submit([Request(7, 1, 7, np.array([1], np.int32), 0, 5, 1.0)])
    with pytest.raises(ValueError, match="rollout 7"):
        await EngineGenerator(engine).run()
