"""The scripted engine in virtual time: every protocol promise, with exact times."""

import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Chunk, Engine, Request
from asyncrl.engines.scripted import Script, ScriptedCrash, ScriptedEngine, hashed
from asyncrl.runtime.ipc.waits import Waits


def request(
    rollout: int,
    tokens: int = 5,
    *,
    prefix: int = 0,
    version: int | None = None,
    key: int | None = None,
) -> Request:
    ids = np.arange(3 + prefix, dtype=np.int32)
    return Request(rollout, 1, rollout if key is None else key, ids, prefix, tokens, 1.0, version)


def counting(tokens: int, pace: float = 1.0, ends: str = "stop") -> Callable[[Request], Script]:
    def script(request: Request) -> Script:
        ids = np.arange(request.prefix_tokens, tokens, dtype=np.int32)
        return Script(ids, -np.ones(len(ids), np.float32), pace, ends)  # type: ignore[arg-type]

    return script


def engine_of(
    script: Callable[[Request], Script], *, slots: int = 2, chunk_tokens: int = 2, **more: object
) -> ScriptedEngine:
    return ScriptedEngine(
        script,
        EngineOptions(slots=slots, context_tokens=64, chunk_tokens=chunk_tokens),
        vocab_size=256,
        **more,
    )  # type: ignore[arg-type]


class Seen:
    """Chunks that were emitted, and their times."""

    def __init__(self) -> None:
        self.chunks: list[tuple[float, Chunk]] = []

    async def __call__(self, chunks: Sequence[Chunk]) -> None:
        await trio.lowlevel.checkpoint()
        self.chunks += [(trio.current_time(), chunk) for chunk in chunks]

    def short(self) -> list[tuple[float, int, int, int, list[int], str]]:
        return [
            (t, c.rollout, c.version, c.start, c.ids.tolist(), c.finish) for t, c in self.chunks
        ]

    def ids(self, rollout: int) -> list[int]:
        return [int(i) for _, c in self.chunks if c.rollout == rollout for i in c.ids]


async def play(engine: Engine, seconds: float, seen: Seen) -> None:
    with trio.move_on_after(seconds):
        await engine.run(seen)


async def test_chunks_at_their_times(autojump_clock: MockClock) -> None:
    engine, seen = engine_of(counting(5)), Seen()
    begun = trio.current_time()
    await engine.load(3, None)
    engine.submit([request(0)])
    await play(engine, 100, seen)
    at = [(t - begun, *rest) for t, *rest in seen.short()]
    assert at == [(2, 0, 3, 0, [0, 1], ""), (4, 0, 3, 2, [2, 3], ""), (5, 0, 3, 4, [4], "stop")]
    assert all(c.behaviour.tolist() == [-1.0] * len(c.ids) for _, c in seen.chunks)


async def test_slots_budget_and_prefix(autojump_clock: MockClock) -> None:
    engine, seen = engine_of(counting(6), slots=1, chunk_tokens=10), Seen()
    await engine.load(0, None)
    engine.submit([request(0, tokens=4), request(1, tokens=50, prefix=2)])
    begun = trio.current_time()
    await play(engine, 100, seen)
    assert [(t - begun, *rest) for t, *rest in seen.short()] == [
        (4, 0, 0, 0, [0, 1, 2, 3], "length"),
        (8, 1, 0, 2, [2, 3, 4, 5], "stop"),
    ]


async def test_nothing_before_the_first_load_and_named_idling(autojump_clock: MockClock) -> None:
    waits = Waits()
    engine, seen = engine_of(counting(1), idle=waits.idle_for), Seen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, seen)
        engine.submit([request(0)])
        await trio.sleep(5)
        assert not seen.chunks and engine.version is None
        assert waits.idle() == {"weights": 5}
        await engine.load(0, None)
        await trio.sleep(7)
        engine.submit([request(1)])
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    assert seen.ids(0) == seen.ids(1) == [0]
    assert waits.idle() == {"weights": 5, "requests": 7}


async def test_interrupt_keeps_what_was_decoded_and_a_swap_splits_versions(
    autojump_clock: MockClock,
) -> None:
    engine, seen = engine_of(counting(20), slots=1, chunk_tokens=8), Seen()
    await engine.load(0, None)
    engine.submit([request(0, tokens=40), request(1)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, seen)
        await trio.sleep(3.5)
        await engine.load(1, None)
        await trio.sleep(2)
        engine.interrupt([0, 1, 99])
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [row[1:] for row in seen.short()] == [
        (0, 0, 0, [0, 1, 2], ""),
        (0, 1, 3, [3, 4], "interrupted"),
        (1, 1, 0, [], "interrupted"),
    ]


async def test_pins_are_served_while_newer_weights_come(autojump_clock: MockClock) -> None:
    engine, seen = engine_of(counting(4), slots=4, chunk_tokens=8), Seen()
    await engine.load(5, None, pin=True)
    engine.submit([request(0, version=5), request(1), request(2, version=4)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, seen)
        await trio.sleep(1.5)
        await engine.load(6, None)
        await trio.sleep(5)
        engine.submit([request(3, version=5)])
        await trio.sleep(1.5)
        engine.unpin(5)
        engine.submit([request(4, version=5)])
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    versions = {(c.rollout, c.version): c.finish for _, c in seen.chunks}
    assert versions == {
        (0, 5): "stop",
        (1, 5): "",
        (1, 6): "stop",
        (2, 4): "interrupted",
        (3, 5): "interrupted",
        (4, 5): "interrupted",
    }
    assert seen.ids(0) == seen.ids(1) == [0, 1, 2, 3] and seen.ids(3) == [0]


async def test_a_crash_and_a_hang(autojump_clock: MockClock) -> None:
    engine, seen = engine_of(counting(3, ends="hang")), Seen()
    await engine.load(0, None)
    engine.submit([request(0)])
    await play(engine, 1000, seen)
    assert seen.ids(0) == [0, 1, 2] and not any(c.finish for _, c in seen.chunks)
    engine = engine_of(counting(3, ends="crash"))
    await engine.load(0, None)
    engine.submit([request(0)])
    with pytest.raises(ScriptedCrash, match="rollout 0"):
        await engine.run(Seen())


async def test_the_same_run_twice_and_prefixes_of_the_hashed_script(
    autojump_clock: MockClock,
) -> None:
    def one() -> ScriptedEngine:
        return engine_of(hashed(vocab_size=256, stop_id=0, run_seed=9), slots=3, chunk_tokens=4)

    runs = []
    for _ in range(2):
        engine, seen = one(), Seen()
        begun = trio.current_time()
        await engine.load(0, None)
        engine.submit([request(i, tokens=40) for i in range(10)])
        await play(engine, 100, seen)
        runs.append([(round(t - begun, 9), *rest) for t, *rest in seen.short()])
        assert sum(c.finish != "" for _, c in seen.chunks) == 10
    assert runs[0] == runs[1]
    script = hashed(vocab_size=256, stop_id=0, run_seed=9)
    whole = script(request(4, tokens=40))
    assert whole.ids[-1] == 0 or len(whole.ids) == 40
    for prefix in range(1, len(whole.ids)):
        rest = script(request(4, tokens=40 - prefix, prefix=prefix))
        assert rest.ids.tolist() == whole.ids[prefix:].tolist()


def test_the_hashed_script_samples_what_it_says() -> None:
    script = hashed(vocab_size=8, stop_id=3, mean_tokens=4.0)
    drawn = np.concatenate([script(request(i, tokens=60)).ids for i in range(4000)])
    share = np.bincount(drawn, minlength=8) / len(drawn)
    assert abs(share[3] - 0.25) < 0.01 and np.abs(np.delete(share, 3) - 0.75 / 7).max() < 0.01
    answer = script(request(0, tokens=60))
    assert np.allclose(np.exp(answer.behaviour), np.where(answer.ids == 3, 0.25, 0.75 / 7))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Request(1, 1, 1, np.array([1, 300], np.int32), 0, 4, 1.0), "outside the vocabulary"),
        (Request(1, 1, 1, np.array([-1, 3], np.int32), 0, 4, 1.0), "outside the vocabulary"),
        (Request(1, 1, 1, np.array([1, 3], np.int32), 0, 63, 1.0), "exceed the context"),
        (Request(1, 1, 1, np.array([1, 3], np.int32), 2, 4, 1.0), "no prompt"),
        (Request(1, 1, 1, np.zeros(0, np.int32), 0, 4, 1.0), "no prompt"),
        (Request(1, 1, 1, np.array([1, 3], np.int32), 0, 0, 1.0), "max_new_tokens"),
        (Request(1, 1, 1, np.array([1, 3], np.int32), 0, 4, -1.0), "temperature"),
        (Request(1, 1, 1, np.array([1, 3], np.int32), 0, 4, float("nan")), "temperature"),
    ],
)
def test_bad_requests(bad: Request, says: str) -> None:
    engine = engine_of(counting(3))
    with pytest.raises(ValueError, match=says):
        engine.submit([bad])


def test_no_torch() -> None:
    code = "import sys, asyncrl.engines.scripted; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
