"""A request that an engine refuses is its rollout's end, under a name, and nothing else's."""

from __future__ import annotations

import numpy as np
import pytest
import trio
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.rollout_actor import submitted
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script, ScriptedEngine
from asyncrl.experience import events as e
from asyncrl.tasks.images.kept_images import ImagesFull


def request(rollout: int, id: int) -> Request:
    return Request(rollout, 1, rollout, np.array([id], np.int32), 0, 4, 1.0)


def script(asked: Request) -> Script:
    return Script(np.full(4, 5, np.int32), np.full(4, -1.0, np.float32), 0.0)


def test_only_those_that_are_refused_end_and_the_others_are_queued_once() -> None:
    engine = ScriptedEngine(
        script, EngineOptions(slots=4, context_tokens=16, chunk_tokens=4), vocab_size=10
    )
    refused = submitted(engine, [request(1, 3), request(2, 10), request(3, 4), request(4, -1)])
    assert [(chunk.rollout, chunk.finish) for chunk in refused] == [(2, "refused"), (4, "refused")]
    assert "id 10 is outside the vocabulary of 10" in refused[0].why
    assert [waiting.rollout for waiting in engine._waiting] == [1, 3]


async def test_a_rollout_that_is_refused_costs_no_actor_and_no_second_attempt(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    world = ScriptedWorld(configured(train={"steps": 6}, rollout={"k_min": 1}))
    make_engine = world.make_engine

    def picky(process: object) -> ScriptedEngine:
        engine: ScriptedEngine = make_engine(process)
        submit = engine.submit

        def refusing(requests: list[Request]) -> None:
            if any(asked.rollout % 7 == 3 for asked in requests):
                raise ValueError(f"no engine takes {len(requests)} such requests")
            submit(requests)

        engine.submit = refusing  # type: ignore[method-assign]
        return engine

    world.make_engine = picky  # type: ignore[method-assign]
    outcome = await world.run()
    world.check()
    assert outcome.ok, outcome.reason
    refused = {event.rollout for event in world.of(e.Buried) if event.reason == "refused"}
    assert refused and all(rollout % 7 == 3 for rollout in refused)
    assert world.store.experience.ledger.rollouts.discarded["refused"] == len(refused)
    leased = [event.rollout for event in world.of(e.Leased)]
    assert all(leased.count(rollout) == 1 for rollout in refused)
    assert not world.coordinator.parts.statistics.restarts
    said = [r.getMessage() for r in caplog.records if "such requests" in r.getMessage()]
    assert 1 <= len(said) <= 4, "the reason is logged, at a bounded rate"


async def test_a_run_all_of_whose_requests_are_refused_ends_by_that_reason(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured())
    make_engine = world.make_engine

    def deaf(process: object) -> ScriptedEngine:
        engine: ScriptedEngine = make_engine(process)

        def refusing(requests: list[Request]) -> None:
            raise ValueError("this model reads no text")

        engine.submit = refusing  # type: ignore[method-assign]
        return engine

    world.make_engine = deaf  # type: ignore[method-assign]
    outcome = await world.run()
    assert not outcome.ok and outcome.reason.startswith("this model reads no text (engines refused")
    assert trio.current_time() < 60


async def test_a_prompt_that_cannot_be_read_is_dropped_by_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(train={"steps": 6}))

    def odd(split: str, prompt_index: int) -> str:
        if prompt_index % 3 == 1:
            raise KeyError("roles must alternate")
        if prompt_index % 5 == 3:
            raise ImagesFull("no room")
        return f"{prompt_index}"

    world.source.prompts = odd
    outcome = await world.run()
    world.check()
    assert outcome.ok, outcome.reason
    dropped = {event.reason for event in world.of(e.Dropped)}
    assert {"prompt_unreadable", "images_full"} <= dropped
    assert world.store.experience.ledger.rollouts.discarded["prompt_unreadable"] > 0
