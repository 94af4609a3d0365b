"""Modelled clusters: the engine that decodes in step has exact times and loses no token, and what
is measured is what can be worked out by hand where lengths are equal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import drawn
from trio.testing import MockClock

from asyncrl.config import ConfigError, load
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.messages import MicroBatch
from asyncrl.simulation import policy
from asyncrl.simulation.fake_learner import FakeLearner
from asyncrl.simulation.scripted_agents import ScriptedAgents
from asyncrl.sizing.cluster_models import (
    ClusterModel,
    EngineModel,
    LengthModel,
    TrainerModel,
    VerdictModel,
)
from asyncrl.sizing.forecast import Cluster, forecast, refuse_unmodelled
from asyncrl.sizing.lockstep import LockstepEngine
from asyncrl.sizing.meter import Measured
from asyncrl.sizing.modelled import MEMBERS, configured, measure
from asyncrl.sizing.recommendation import with_settings

GROUPS = 16
STEP = GROUPS * MEMBERS
EVEN = EngineModel(decode_ms=[(1, 1e3)])
"""A second for a decode step, whatever is busy."""


def request(rollout: int, *, prefix: int = 0, attempt: int = 1) -> Request:
    return Request(rollout, attempt, rollout, np.ones(3 + prefix, np.int32), prefix, 50, 1.0)


def engine_of(
    length: Callable[[int], int],
    model: EngineModel = EVEN,
    *,
    slots: int = 4,
    chunk: int = 100,
    swap_s: float = 0.0,
    recompute: bool = False,
) -> LockstepEngine:
    return LockstepEngine(
        length,
        model,
        vocab_size=8,
        idle=nullcontext,
        slots=slots,
        context_tokens=128,
        chunk_tokens=chunk,
        swap_s=swap_s,
        recompute=recompute,
    )


class Seen:
    """Chunks that were emitted, and their times."""

    def __init__(self) -> None:
        self.began = trio.current_time()
        self.chunks: list[tuple[float, Chunk]] = []

    async def __call__(self, chunks: Sequence[Chunk]) -> None:
        await trio.lowlevel.checkpoint()
        self.chunks += [(round(trio.current_time() - self.began, 9), chunk) for chunk in chunks]

    @property
    def short(self) -> list[tuple[float, int, int, int, int, str]]:
        """Time, rollout, version, start, tokens, finish."""
        return [(at, c.rollout, c.version, c.start, len(c.ids), c.finish) for at, c in self.chunks]


# ------------------------------------------------------------------------------------------ engine


async def test_an_engine_that_stands_still_decodes_nothing_meanwhile(
    autojump_clock: MockClock,
) -> None:
    """Of 5 tokens the first two come in the first 2.5 s, and the others 10 s later; a request that
    comes in the meantime begins after it."""
    engine, seen = engine_of(lambda key: 5 if key == 1 else 2, chunk=1), Seen()
    await engine.load(1, None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, seen)
        engine.submit([request(1)])
        await trio.sleep(2.5)
        engine.pause(10.0)
        await trio.sleep(12.5)
        engine.pause(4.0)
        await trio.sleep(1.0)
        engine.submit([request(2)])
        await trio.sleep(10.0)
        nursery.cancel_scope.cancel()
    ends = [(at, c.rollout) for at, c in seen.chunks if c.finish]
    tokens = [at for at, c in seen.chunks if c.rollout == 1]
    assert tokens == [1.0, 2.0, 13.0, 14.0, 15.0] and ends == [(15.0, 1), (21.0, 2)]
    assert engine.decoding_s == pytest.approx(7.0)


async def test_a_decode_step_lasts_as_long_as_its_busy_slots_make_it(
    autojump_clock: MockClock,
) -> None:
    engine, seen = engine_of(lambda key: (2, 5, 9)[key], EngineModel.roofline(1.0, 0.5)), Seen()
    await engine.load(7, None)
    engine.submit([request(rollout) for rollout in range(3)])
    with trio.move_on_after(100):
        await engine.run(seen)
    # three are busy for 2 steps of 1.5 s, two for 3 steps of 1 s, and one alone is no faster than
    # the weights are read
    assert seen.short == [
        (3.0, 0, 7, 0, 2, "stop"),
        (6.0, 1, 7, 0, 5, "stop"),
        (10.0, 2, 7, 0, 9, "stop"),
    ]


async def test_slots_are_refilled_and_budgets_kept(autojump_clock: MockClock) -> None:
    engine, seen = engine_of(lambda key: 60, slots=1), Seen()
    await engine.load(0, None)
    engine.submit([request(0), request(1, prefix=20)])
    with trio.move_on_after(200):
        await engine.run(seen)
    assert seen.short == [(50.0, 0, 0, 0, 50, "length"), (90.0, 1, 0, 20, 40, "stop")]


async def test_a_request_is_read_before_it_begins_and_all_wait(autojump_clock: MockClock) -> None:
    seen = Seen()
    reading = EngineModel(decode_ms=[(1, 1e3)], prefill_tokens_per_s=2.0)
    engine = engine_of(lambda key: (10, 30)[key], reading, slots=1)
    await engine.load(0, None)
    engine.submit([request(0), request(1, prefix=20)])
    with trio.move_on_after(200):
        await engine.run(seen)
    # 3 ids are read in 1.5 s, and 23 in 11.5 s: the prefix is what was generated before
    assert seen.short == [(11.5, 0, 0, 0, 10, "stop"), (33.0, 1, 0, 20, 10, "stop")]


async def test_what_is_submitted_late_begins_late(autojump_clock: MockClock) -> None:
    engine, seen = engine_of(lambda key: 10), Seen()
    await engine.load(0, None)
    with trio.move_on_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run, seen)
            await trio.sleep(1.0)
            engine.submit([request(0)])
            await trio.sleep(4.0)
            engine.submit([request(1)])
            await engine.load(1, None)
    assert seen.short == [
        (5.0, 0, 0, 0, 4, ""),
        (11.0, 0, 1, 4, 6, "stop"),
        (15.0, 1, 1, 0, 10, "stop"),
    ]


async def test_chunks_at_every_so_many_steps_and_an_interruption(autojump_clock: MockClock) -> None:
    engine, seen = engine_of(lambda key: 10, slots=1, chunk=4), Seen()
    await engine.load(3, None)
    engine.submit([request(0), request(1)])
    with trio.move_on_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run, seen)
            await trio.sleep(6.5)
            engine.interrupt([0, 1, 99])
    assert seen.short == [
        (4.0, 0, 3, 0, 4, ""),
        (6.5, 0, 3, 4, 2, "interrupted"),
        (6.5, 1, 3, 0, 0, "interrupted"),
    ]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "interrupt", "load"]), st.integers(0, 3), st.floats(0.0, 6.0)
    ),
    max_size=20,
)


@settings(max_examples=drawn(60))
@given(ACTIONS, st.integers(1, 3), st.integers(1, 7))
def test_no_token_is_lost_or_made_twice(
    actions: list[tuple[str, int, float]], slots: int, chunk: int
) -> None:
    """Whatever comes when: a rollout's chunks follow one another, versions never fall, and each
    leased one ends once, with all its tokens where it stops."""

    def length(key: int) -> int:
        return 3 + key % 5

    async def main() -> tuple[Seen, list[Request]]:
        engine, seen, leased = (
            engine_of(length, EngineModel.roofline(0.7, 0.3), slots=slots, chunk=chunk),
            Seen(),
            list[Request](),
        )
        attempts, version, numbers = dict[int, int](), 0, itertools.count()
        await engine.load(0, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run, seen)
            for action, which, after in actions:
                await trio.sleep(after)
                ended = {c.rollout: c for _, c in seen.chunks if c.finish}
                again = [
                    c
                    for c in ended.values()
                    if c.finish == "interrupted" and attempts[c.rollout] == c.attempt
                ]
                if action == "load":
                    version += 1
                    await engine.load(version, None)
                elif action == "interrupt":
                    engine.interrupt([r for r in attempts if r % 4 == which])
                else:
                    chosen = [
                        request(c.rollout, prefix=c.start + len(c.ids), attempt=c.attempt + 1)
                        for c in again
                    ]
                    chosen += [request(next(numbers)) for _ in range(which)]
                    attempts.update({r.rollout: r.attempt for r in chosen})
                    leased += chosen
                    engine.submit(chosen)
            await trio.sleep(1000.0)
            nursery.cancel_scope.cancel()
        return seen, leased

    seen, leased = trio.run(main, clock=MockClock(autojump_threshold=0))
    versions = [c.version for _, c in seen.chunks if len(c.ids)]
    assert versions == sorted(versions)
    for lease in leased:
        mine = [
            c for _, c in seen.chunks if (c.rollout, c.attempt) == (lease.rollout, lease.attempt)
        ]
        starts = [c.start for c in mine]
        assert starts == [
            lease.prefix_tokens + sum(len(c.ids) for c in mine[:i]) for i in range(len(mine))
        ]
        assert [bool(c.finish) for c in mine] == [False] * (len(mine) - 1) + [True]
        total = lease.prefix_tokens + sum(len(c.ids) for c in mine)
        assert (
            total == length(lease.key) if mine[-1].finish == "stop" else total < length(lease.key)
        )


# ----------------------------------------------------------------------------------------- lengths


def test_lengths_are_lognormal_and_cut() -> None:
    mean, most = 100.0, 400
    drawn = np.array([LengthModel(mean=mean).drawn(3, most)(key) for key in range(20_000)])
    normal = np.random.default_rng(0).standard_normal(2_000_000)
    reference = np.minimum(np.exp(math.log(mean) - 0.5 + normal), most)
    assert drawn.min() >= 1 and drawn.max() == most
    assert drawn.mean() == pytest.approx(reference.mean(), rel=0.02)
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(drawn, share) == pytest.approx(np.quantile(reference, share), rel=0.03)
    assert [LengthModel(mean=mean).drawn(3, most)(key) for key in (5, 6)] != [
        LengthModel(mean=mean).drawn(4, most)(key) for key in (5, 6)
    ]


# ---------------------------------------------------------------------------------------- clusters


def models_of(length: LengthModel, step_s: float, verdict_s: float = 0.5) -> ClusterModel:
    return ClusterModel(
        engine=EVEN,
        length=length,
        trainer=TrainerModel(token_us=0.0, step_s=step_s),
        verdict=VerdictModel(seconds=verdict_s),
    )


def run(
    tokens: int,
    trainer_s: float,
    *,
    depth: int,
    max_lag: int,
    slots: int = STEP * 4,
    first: int = 3,
    last: int = 7,
) -> Measured:
    config = configured(
        1,
        slots,
        tokens,
        train={"batch_groups": GROUPS},
        staleness={"depth": depth, "max_lag": max_lag},
    )
    even = LengthModel(quantiles=[tokens, tokens])
    return measure(config, models_of(even, trainer_s), first=first, last=last)


@pytest.mark.explore
def test_a_trainer_that_limits_is_never_idle_and_lag_is_the_depth() -> None:
    came = run(5, 30.0, depth=2, max_lag=2)
    assert came.step_s == pytest.approx(30.0, abs=0.1) and came.idle < 0.01
    assert came.heads == {2: 4 * STEP} and came.masked == 0.0
    assert came.trained == came.generated == 4 * STEP * 5
    assert came.largest_lag == came.head_lag == came.lag == 2


@pytest.mark.explore
def test_without_running_ahead_generation_and_training_take_turns() -> None:
    came = run(20, 30.0, depth=0, max_lag=0)
    assert came.step_s == pytest.approx(20 + 0.5 + 30, abs=0.2) and came.idle == pytest.approx(
        20.5 / 50.5, abs=0.01
    )
    assert came.heads == {0: 4 * STEP} and not came.discarded


@pytest.mark.explore
def test_engines_that_limit_leave_the_trainer_idle() -> None:
    came = run(20, 5.0, depth=1, max_lag=4, slots=STEP)
    assert came.step_s == pytest.approx(20.0, abs=1.0) and came.idle == pytest.approx(
        0.75, abs=0.03
    )


@pytest.mark.explore
def test_where_lengths_have_a_tail_what_is_too_old_is_not_trained() -> None:
    train = {"batch_groups": GROUPS}
    config = configured(2, STEP, 200, train=train, staleness={"depth": 1, "max_lag": 1})
    came = measure(config, models_of(LengthModel(mean=20.0), 20.0), first=3, last=8)
    old = sum(tokens for lag, tokens in came.arrived.items() if lag > 1)
    assert came.trained == sum(came.arrived.values()) - old
    assert 0 < old <= came.discarded["stale"] and came.masked == pytest.approx(
        1 - came.trained / (came.trained + sum(came.discarded.values()))
    )
    assert came.largest_lag == max(came.arrived) > 1


@cache
def lending(last: int, depth: int, lending: str = "priority", lent: int = 1) -> Measured:
    """A run whose trainer computes for 20 s a step, where one engine decodes for 50, each slot two
    responses; with `lent` more, which have the trainer's cores while it waits."""
    models = models_of(LengthModel(quantiles=[25, 25]), 20.0)
    small = {"batch_groups": 8, "micro_tokens": 400}
    flow = {"depth": depth, "max_lag": 4 * depth}
    config = configured(1 + lent, 8 * MEMBERS // 2, 25, train=small, staleness=flow)
    settings = {
        "rollout.lent_actors": lent,
        "rollout.lending": lending,
        "engine.kind": "embedded",
    }
    return measure(with_settings(config, settings), models, first=5, last=last)


@pytest.mark.explore
@pytest.mark.parametrize(("way", "depth"), [("priority", 2), ("switch", 2), ("switch", 1)])
def test_an_engine_on_the_trainers_cores_decodes_while_it_waits(way: str, depth: int) -> None:
    """Both decode a step's 50 s in d + (d - 20) = 50, so that d = 35. By priority a step of depth 1
    would wait for what the lent one holds."""
    alone, lent = lending(13, depth, lent=0), lending(13, depth, way)
    assert alone.step_s == pytest.approx(50.0, rel=0.02) and alone.idle_cores == alone.idle
    assert alone.idle == pytest.approx(0.6, abs=0.02)
    assert lent.step_s == pytest.approx(35.0, rel=0.05)
    assert lent.idle == pytest.approx(15 / 35, abs=0.03) and lent.idle_cores < 0.1


def test_a_run_that_ends_before_is_no_measurement() -> None:
    config = configured(
        1,
        STEP,
        5,
        train={"steps": 2, "batch_groups": GROUPS, "eval_every": 0, "checkpoint_every": 0},
    )
    with pytest.raises(RuntimeError, match="all 2 steps are done"):
        measure(config, models_of(LengthModel(quantiles=[5, 5]), 0.1), first=1, last=3)


@pytest.mark.explore
@pytest.mark.parametrize(("tool", "least", "lag"), [(10.0, 0.9, 3.0), (0.0, 0.9, 0.5)])
def test_as_many_episodes_are_live_as_keep_engines_at_work(
    tool: float, least: float, lag: float
) -> None:
    """Though agents actors have room for thousands: with tools ten times as slow as decoding slots
    are at work all the same, and where there are none, tokens do not grow old in a queue."""
    slots, turns = 4, 4
    config = configured(
        1,
        slots,
        200,
        staleness={"max_lag": 8, "depth": 8},
        train={"batch_groups": 2},
        agent={"run": "scripted:agent", "concurrency": 4096, "max_calls": turns},
    )
    found = measure(
        config,
        models_of(LengthModel(mean=10), 1.0, verdict_s=1.0),
        first=8,
        last=16,
        agents=ScriptedAgents(turns, 50, tool * 10),
    )
    assert found.generated / found.seconds / slots >= least
    assert found.lag <= lag


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["agent.run=http"], "episodes of agents are not modelled"),
        (["staleness.finish_on=own"], "one version each"),
    ],
)
def test_what_no_model_has_is_refused(sets: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        refuse_unmodelled(load(None, sets, {}))


def test_where_all_engines_were_lent_nothing_is_forecast() -> None:
    config = load(None, ["rollout.actors=2", "rollout.lent_actors=1"], {})
    models = models_of(LengthModel(mean=10), 1.0)
    with pytest.raises(ConfigError, match=r"--engines: 1.* one at least needs devices of its own"):
        forecast(config, models, Cluster(1, 1), 1.0)


def test_a_micro_batch_takes_its_time_however_few_its_tokens() -> None:
    observer, heard = SimpleNamespace(on_batch=lambda *_: None), list[float]()
    learner = FakeLearner(0, policy.initial(0), observer, {}, None)  # type: ignore[arg-type]
    learner.batch_s, learner.computing = 0.25, heard.append
    clock = MockClock(autojump_threshold=0)
    trio.run(learner.accumulate, MicroBatch(0, 0, [], {}), [b"", b"", b""], clock=clock)
    assert heard == [0.25]
