"""Whole runs in virtual time whose leases run out: long responses come to their end, and what hangs
does not hold up its group."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from numpy import float32, full, int32
from scripted_world import ScriptedWorld, configured

from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script
from asyncrl.experience import events as e
from asyncrl.messages import Replace

LONG = 50


def lengths(request: Request) -> Script:
    """One response in fifty is ten times as long as the others: 100 s instead of 10 s."""
    left = (LONG if request.key % 50 == 7 else LONG // 10) - request.prefix_tokens
    return Script(full(left, 5, int32), full(left, -1.0, float32), 2.0, "stop")


@pytest.mark.explore
async def test_responses_ten_times_as_long_as_the_others_are_not_buried(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Not even where one failed attempt is one too many."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            rollout={"actors": 2, "attempts": 1, "max_new_tokens": LONG, "lease_s": 600.0},
            train={"steps": 60, "batch_groups": 2},
            staleness={"on_stale": "train"},
            supervision={"stall_s": 1000.0},
        )
    )
    world.script = lengths
    outcome = await world.run()
    world.check()
    times = world.coordinator.parts.leases.times
    assert outcome.ok and times.p95_s is not None and times.deadline_s < 100.0
    assert world.of(e.Buried) == []
    expired = {
        event.rollout
        for event in world.log.events
        if isinstance(event, e.Requeued) and event.reason == "lease_expired"
    }
    trained = {
        event.rollout: event.trained for event in world.log.events if isinstance(event, e.Trained)
    }
    long = [rollout for rollout in trained if rollout % 50 == 7]
    assert len(long) >= 5 and {trained[rollout] for rollout in long} == {LONG}
    assert expired and expired <= {
        event.rollout for event in world.log.events if isinstance(event, e.Sealed)
    } | set(world.store.experience.rollouts)
    scraped = {
        sample.name: sample.value
        for family in world.coordinator.parts.metrics.registry.collect()
        for sample in family.samples
    }
    assert scraped["asyncrl_lease_tail_seconds"] == pytest.approx(times.p95_s, rel=0.5)
    assert 0 < scraped["asyncrl_lease_deadline_seconds"] < 100.0


async def test_a_response_that_hangs_is_buried_after_its_attempts_and_named(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first lease brought tokens, and is no failed attempt; the following ones brought none."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0}, rollout={"attempts": 3, "lease_s": 20.0}, train={"steps": 100}
        )
    )

    def script(request: Request) -> Script:
        hangs = request.rollout == 5
        left = 4 - request.prefix_tokens
        return Script(
            full(left, 5, int32), full(left, -1.0, float32), 0.5, "hang" if hangs else "stop"
        )

    world.script = script
    outcome = await world.run()
    world.check()
    assert outcome.ok
    buried = [event for event in world.log.events if isinstance(event, e.Buried)]
    assert [(event.rollout, event.reason) for event in buried] == [(5, "lease_expired")]
    leases = Counter(event.rollout for event in world.log.events if isinstance(event, e.Leased))
    assert leases[5] == 4
    assert "rollout 5 " in caplog.text and "3 attempts" in caplog.text


async def test_a_lease_that_ran_out_goes_on_with_another_engine(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The first engine is a hundred times as slow as the second, and streams all the same, so that
    nobody replaces it."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            rollout={"actors": 2, "attempts": 1, "lease_s": 20.0},
            supervision={"stall_s": 1000.0},
            train={"steps": 10},
            staleness={"on_stale": "train"},
        )
    )
    world.script = lambda request: Script(
        full(20 - request.prefix_tokens, 5, int32),
        full(20 - request.prefix_tokens, -1.0, float32),
        4.0 if request.attempt == 1 and request.key % 8 == 3 else 0.04,
        "stop",
    )
    outcome = await world.run()
    world.check()
    assert outcome.ok and world.of(e.Buried) == []
    owners: dict[int, list[str]] = {}
    for event in world.log.events:
        if isinstance(event, e.Leased):
            owners.setdefault(event.rollout, []).append(event.holder)
    again = [owner for owner in owners.values() if len(owner) > 1]
    assert again and all(first != second for first, second, *_ in again)


async def test_what_an_engine_had_no_slot_for_has_not_failed_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An engine is killed when it has begun, before it streams: what it decodes fails, what waits
    behind that does not."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            engine={"slots": 4, "chunk_tokens": 4, "kind": "scripted", "context_tokens": 64},
            train={"steps": 3, "batch_groups": 4},
        )
    )
    world.script = lambda request: Script(
        full(8, 5, int32)[request.prefix_tokens :],
        full(8, -1.0, float32)[request.prefix_tokens :],
        0.1,
    )

    async def murderer() -> None:
        await world.until(
            lambda: (
                (engine := world.coordinator.parts.engines.get("rollout-0")) is not None
                and len(engine.held["train"]) == 5
            )
        )
        world.kill("rollout-0")

    outcome = await world.run(murderer)
    world.check()
    assert outcome.ok and world.of(e.Buried) == []
    lost = {
        event.rollout: event.failed
        for event in world.log.events
        if isinstance(event, e.Requeued) and event.reason == "actor_lost"
    }
    assert lost == {0: True, 1: True, 2: True, 3: True, 4: False}


async def test_an_engine_that_gives_everything_back_unasked_fails_what_it_decodes_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            engine={"slots": 4, "chunk_tokens": 4, "kind": "scripted", "context_tokens": 64},
            train={"steps": 3, "batch_groups": 4},
        )
    )
    engines = []
    make = world.make_engine
    world.make_engine = lambda process: engines.append(make(process)) or engines[-1]  # type: ignore[method-assign, func-returns-value]
    world.script = lambda request: Script(
        full(8, 5, int32)[request.prefix_tokens :],
        full(8, -1.0, float32)[request.prefix_tokens :],
        0.1,
    )

    async def abort() -> None:
        await world.until(
            lambda: (
                (engine := world.coordinator.parts.engines.get("rollout-0")) is not None
                and len(engine.held["train"]) == 5
            )
        )
        await trio.sleep(0.05)
        engines[0].interrupt(range(5))

    outcome = await world.run(abort)
    world.check()
    back = {
        event.rollout: event.failed
        for event in world.log.events
        if isinstance(event, e.Requeued) and event.reason == "interrupted"
    }
    assert outcome.ok and back == {0: True, 1: True, 2: True, 3: True, 4: False}


async def test_a_coordinator_that_stood_still_blames_nobody_for_what_it_has_not_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its loop is held up for longer than a lease and a stall may last; what came meanwhile is read
    before anybody is judged."""
    world = ScriptedWorld(
        configured(rollout={"lease_s": 20.0}, supervision={"stall_s": 60.0}, train={"steps": 30})
    )

    async def hold_up() -> None:
        await world.until(lambda: world.learner.version >= 3)
        autojump_clock.jump(500.0)

    outcome = await world.run(hold_up)
    world.check()
    assert outcome.ok, outcome.reason
    assert world.of(e.Buried) == [] and not any(
        isinstance(message, Replace) for message in world.heard
    )


async def test_a_pause_of_the_machine_costs_no_lease(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A lease lasts 60 s, and a response takes 48 s: after a pause of 100 s none has run out,
    though more than one tick comes before anybody is heard again."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            rollout={"actors": 2, "lease_s": 60.0, "max_new_tokens": 24},
            supervision={"stall_s": 1000.0},
            train={"steps": 2},
        )
    )
    world.script = lambda request: Script(
        full(12 - request.prefix_tokens, 5, int32),
        full(12 - request.prefix_tokens, -1.0, float32),
        4.0,
        "stop",
    )

    async def pause() -> None:
        await world.until(lambda: world.holds("rollout-0"))
        engines = [world.processes[name] for name in ("rollout-0", "rollout-1")]
        for engine in engines:
            engine.freeze(True)
        await trio.sleep(0.1)
        autojump_clock.jump(100.0)
        await trio.sleep(3.5)
        for engine in engines:
            engine.freeze(False)

    outcome = await world.run(pause)
    world.check()
    assert outcome.ok, outcome.reason
    assert not any(isinstance(message, Replace) for message in world.heard)
    back = [event.reason for event in world.log.events if isinstance(event, e.Requeued)]
    assert "lease_expired" not in back


async def test_a_response_that_ends_every_engine_takes_no_other_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Whenever it is begun its engine is killed, before anything beside it has streamed."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            engine={"slots": 4, "chunk_tokens": 4, "kind": "scripted", "context_tokens": 64},
            rollout={"actors": 2, "attempts": 3},
            train={"steps": 4, "batch_groups": 4},
        )
    )
    inner = world.script

    def script(request: Request) -> Script:
        if request.rollout == 1:
            owner = world.store.experience.rollouts[1].holder
            if owner:
                world.kill(owner)
        return inner(request)

    world.script = script
    with trio.fail_after(1000):
        outcome = await world.run()
    world.check()
    assert outcome.ok
    assert [event.rollout for event in world.log.events if isinstance(event, e.Buried)] == [1]
    assert sum(isinstance(event, e.Requeued) and event.failed for event in world.log.events) > 2
