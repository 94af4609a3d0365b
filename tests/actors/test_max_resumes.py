"""`rollout.max_resumes`: how often a rollout may be taken back and go on."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from numpy import float32, full, int32
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.resume import begin_again
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience


def slow(request: Request) -> Script:
    left = 20 - request.prefix_tokens
    return Script(full(left, 5, int32), full(left, -1.0, float32), 0.1, "stop")


def hops(world: ScriptedWorld) -> Counter[int]:
    return Counter(event.rollout for event in world.log.events if isinstance(event, e.Requeued))


async def interrupted(max_resumes: int) -> ScriptedWorld:
    """Rollouts of 2 s, and engines killed so often that some are taken back three times, and some
    not at all."""
    settings = {
        "task": {"eval_size": 0},
        "rollout": {"actors": 2, "attempts": 50, "max_resumes": max_resumes},
        "train": {"steps": 6},
    }
    world = ScriptedWorld(configured(**settings))
    world.script = slow
    world.restart_s = 0.1
    draw = random.Random(0)

    async def murderer() -> None:
        for _ in range(12):
            await trio.sleep(draw.uniform(0.2, 1.6))
            name = draw.choice(("rollout-0", "rollout-1"))
            await world.until(lambda name=name: world.holds(name))
            world.kill(name)

    with trio.fail_after(3000):
        assert (await world.run(murderer)).ok
    world.check()
    return world


@pytest.mark.parametrize("max_resumes", [1, 2])
async def test_a_rollout_that_is_taken_back_too_often_is_given_up_by_name(
    max_resumes: int, autojump_clock: trio.testing.MockClock
) -> None:
    world = await interrupted(max_resumes)
    buried = {event.rollout for event in world.log.events if isinstance(event, e.Buried)}
    assert {event.reason for event in world.log.events if isinstance(event, e.Buried)} == {
        "max_resumes"
    }
    times = hops(world)
    assert (
        buried == {rollout for rollout, count in times.items() if count > max_resumes}
        and max(times.values()) == max_resumes + 1
    )
    assert any(0 < count <= max_resumes for count in times.values())
    ledger = world.store.experience.ledger
    assert (
        ledger.rollouts.discarded["max_resumes"] == len(buried)
        and ledger.tokens.discarded["max_resumes"] > 0
    )


async def test_without_a_number_they_go_on_as_often_as_they_are_taken_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = await interrupted(0)
    assert max(hops(world).values()) > 2 and world.of(e.Buried) == []


async def test_finished_members_of_its_group_stay(autojump_clock: trio.testing.MockClock) -> None:
    """One member of each group is long: it alone is given up, and the others are trained."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            rollout={"actors": 1, "attempts": 50, "max_resumes": 1},
            train={"steps": 2},
            engine={"slots": 8},
        )
    )
    world.restart_s = 0.1
    long = range(0, 400, 4)
    world.script = lambda request: (
        slow(request)
        if request.rollout in long
        else Script(full(4, 5, int32), full(4, -1.0, float32), 0.01, "stop")
    )

    async def murderer() -> None:
        for _ in range(2):
            await world.until(
                lambda: any(
                    len(r.ids) > 16
                    for r in world.store.experience.rollouts.values()
                    if r.id in long and r.holder
                )
            )
            world.kill("rollout-0")
            await trio.sleep(0.2)

    with trio.fail_after(3000):
        assert (await world.run(murderer)).ok
    world.check()
    buried = [event.rollout for event in world.log.events if isinstance(event, e.Buried)]
    trained = {event.rollout for event in world.log.events if isinstance(event, e.Trained)}
    assert buried and set(buried) <= set(long)
    for rollout in buried:
        assert {rollout + 1, rollout + 2, rollout + 3} <= trained


async def test_a_rollout_that_is_taken_back_by_a_resume_is_given_up_before_it_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(task={"eval_size": 0}, rollout={"max_resumes": 1}))
    events: list[e.AnyEvent] = [
        e.Admitted(0, 0, 4, "train", 0, full(2, 5, int32).tobytes(), 24, None, None, 0, 1)
    ]
    for attempt in (1, 2):
        events.append(e.Leased(0, "rollout-0", attempt))
        events.append(
            e.Extended(
                0,
                attempt,
                0,
                attempt - 1,
                full(1, 5, int32).tobytes(),
                full(1, -1.0, float32).tobytes(),
            )
        )
        events += [e.Requeued(0, attempt, "lease_expired")] if attempt == 1 else []
    state = Experience()
    for event in events:
        state.apply(event)
    world.log.events = list(events)
    world.store = EventStore(state, world.log)

    class Kept:
        abandon = staticmethod(lambda version: None)
        keep = staticmethod(lambda version, experience: None)

    begin_again(world.store, Kept(), 0)  # type: ignore[arg-type]
    assert (await world.run()).ok
    assert [
        (event.rollout, event.reason) for event in world.log.events if isinstance(event, e.Buried)
    ] == [(0, "max_resumes")]
    assert (
        max(
            event.attempt
            for event in world.log.events
            if isinstance(event, e.Leased) and event.rollout == 0
        )
        == 2
    )
