"""Engines that are lent the trainer's devices: given work while it has none, and asked to give that
back when it has; nothing of it is lost."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from scripted_parts import STOP, VOCABULARY, ScriptedLearner
from scripted_world import ScriptedWorld, configured, run_well

from asyncrl.actors.coordinator.coordinator import Coordinator
from asyncrl.actors.coordinator.lending_choice import RECENT
from asyncrl.engines.scripted import hashed
from asyncrl.experience import events as e
from asyncrl.explain.why import answer

OWN, LENT = "rollout-0", "rollout-1"


def made(
    lent: int = 1,
    *,
    actors: int = 2,
    lending: str = "switch",
    step_s: float = 10.0,
    chunk: int = 2,
    slots: int = 4,
    steps: int = 8,
    **sections: dict[str, object],
) -> ScriptedWorld:
    """A run whose trainer computes for `step_s`, where one engine decodes for about four times
    that."""
    settings: dict[str, dict[str, object]] = {
        "task": {"eval_size": 0},
        "engine": {"slots": slots, "chunk_tokens": chunk},
        "rollout": {"actors": actors, "lent_actors": lent, "lending": lending, "lease_s": 500.0},
        "train": {"steps": steps, "batch_groups": 4, "eval_every": 0, "checkpoint_every": 0},
        "staleness": {"max_lag": 4, "depth": 1},
        "supervision": {"stall_s": 1000.0, "restarts": 3},
    }
    for name, values in sections.items():
        settings[name] = settings.get(name, {}) | values
    world = ScriptedWorld(configured(**settings))
    world.script = hashed(
        vocab_size=VOCABULARY, stop_id=STOP, mean_tokens=10, seconds_per_token=1.0
    )
    world.learner = ScriptedLearner(0.0, step_s)
    return world


def lent_leases(world: ScriptedWorld) -> int:
    return sum(event.holder == LENT for event in world.of(e.Leased))


async def test_it_works_while_the_trainer_waits_and_gives_back_what_it_holds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = made()
    while_busy = list[str]()

    async def look() -> None:
        """A moment after the trainer has work, a lent engine holds nothing."""
        while True:
            await world.until(lambda: world.coordinator.parts.stepping is not None)
            stepping, engine = (
                world.coordinator.parts.stepping,
                world.coordinator.parts.engines.get(LENT),
            )
            assert stepping is not None
            if not stepping.idle and engine is not None:
                await trio.sleep(1.5)  # a token of the scripted engine, and the way back
                if not stepping.idle and any(engine.held.values()):
                    while_busy.append(f"{trio.current_time()}")
            await trio.sleep(0.3)

    await run_well_beside(world, look)
    assert not while_busy
    assert lent_leases(world) > 8 and not world.of(e.LateTokens)
    back = world.of(e.Requeued)
    assert back and all(event.reason == "interrupted" and not event.failed for event in back)
    assert loans(world) >= 8


async def run_well_beside(world: ScriptedWorld, *others: object) -> None:
    outcome = await world.run(*others)
    world.check()
    assert outcome.ok, outcome.reason


@pytest.mark.explore
async def test_a_step_is_shorter_by_about_what_its_devices_were_idle(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One engine alone decodes for g seconds a step, of which the trainer waits for g - 10. Lent
    its devices, a step is (g + 10) / 2 where nothing is lost by it."""
    alone = await run_well(made(0, actors=1))
    lent = await run_well(made())
    both = await run_well(made(0, actors=2))
    g = alone.seconds / 8
    assert g > 30
    assert lent.seconds / 8 < 0.5 * (g + 10) * 1.25
    assert both.seconds < lent.seconds < 0.8 * alone.seconds


@pytest.mark.explore
async def test_steps_are_taken_whole_while_it_lends_and_nothing_changes_else(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = await run_well(made())
    taken = world.of(e.Taken)
    assert [event.step for event in taken] == list(range(8))
    assert {event.rollout for event in world.of(e.Trained)} == {
        rollout for event in taken for rollout in event.rollouts
    }


async def test_without_its_own_engines_a_run_lends_whatever_that_is_worth(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = made(supervision={"restarts": 0})

    async def kill() -> None:
        await world.until(lambda: world.holds(OWN))
        world.coordinator.parts.lent._choice.worth = False
        world.kill(OWN)

    await run_well_beside(world, kill)
    assert world.coordinator.parts.engines.get(OWN) is None
    assert lent_leases(world) > 32


async def test_a_lent_engine_that_dies_and_comes_again_is_lent_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = made()
    before = list[int]()

    async def kill() -> None:
        await world.until(lambda: world.holds(LENT))
        world.kill(LENT)
        await world.until(lambda: world.coordinator.parts.engines.get(LENT) is None)
        before.append(lent_leases(world))

    await run_well_beside(world, kill)
    assert lent_leases(world) > before[0]


@pytest.mark.explore
async def test_without_lent_engines_the_trainer_is_fed_as_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The only lent engine does not come again: no loan begins, and steps are taken in pieces."""
    world = made(steps=20, supervision={"restarts": 0})
    before = list[int]()

    async def kill() -> None:
        await world.until(lambda: loans(world) == 2)
        world.kill(LENT)
        await world.until(lambda: world.coordinator.parts.engines.get(LENT) is None)
        before.append(max((event.step for event in world.of(e.Taken)), default=0))

    await run_well_beside(world, kill)
    assert loans(world) <= 3
    later = [event.step for event in world.of(e.Taken) if event.step > before[0] + 1]
    assert len(later) > len(set(later)) > 10


def loans(world: ScriptedWorld) -> int:
    status = world.coordinator.parts.lent.status(trio.current_time())
    return 0 if status is None else status.loans


def churned(world: ScriptedWorld) -> tuple[int, bool]:
    status = world.coordinator.parts.lent.status(trio.current_time())
    assert status is not None
    return status.changes, status.worth


@pytest.mark.explore
async def test_loans_that_bring_less_than_they_cost_cease_and_do_not_flap(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A response's tokens come at its end: nothing of a loan is used before the step is ready."""
    world = await run_well(made(chunk=64, slots=8, step_s=30.0, steps=60))
    assert churned(world) == (1, False)
    assert RECENT <= loans(world) < RECENT + 4


@pytest.mark.explore
async def test_a_load_that_rises_is_lent_again(autojump_clock: trio.testing.MockClock) -> None:
    world = made(chunk=64, slots=8, step_s=30.0, steps=80)

    async def rise() -> None:
        await world.until(lambda: loans(world) > 0 and churned(world)[0] == 1)
        world.learner._step_s = 0.1
        world.script = hashed(
            vocab_size=VOCABULARY, stop_id=STOP, mean_tokens=40, seconds_per_token=4.0
        )

    await run_well_beside(world, rise)
    assert churned(world)[0] >= 2


@pytest.mark.explore
async def test_it_is_said_how_lending_stands(autojump_clock: trio.testing.MockClock) -> None:
    world = made()
    said = list[str]()

    async def ask() -> None:
        await world.until(lambda: loans(world) == 6)
        status = world.coordinator.status()
        assert status.lending is not None and status.lending.worth and status.lending.engines == 1
        assert 0 < status.lending.seconds < status.seconds
        said.extend(answer(status, lives=True, age_s=0.0, stalled=False, run=world.run_path))

    world.run_path = __file__
    await run_well_beside(world, ask)
    (sentence,) = (one for one in said if "lent" in one)
    assert "in 6 loans; the last ones gained " in sentence, sentence
    registry = world.coordinator.parts.metrics.registry
    counted = registry.get_sample_value("asyncrl_loans_total")
    assert counted is not None and counted >= 6
    assert registry.get_sample_value("asyncrl_lending") == 1.0
    total = registry.get_sample_value("asyncrl_lent_seconds_total")
    status = world.coordinator.status().lending
    assert status is not None and total == pytest.approx(status.seconds)


@pytest.mark.explore
async def test_a_run_that_lends_by_priority_or_not_at_all_closes_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for world in (made(0), made(1, lending="priority")):
        await run_well(world)
        assert world.coordinator.parts.lent.status(0.0) is None
        assert len(world.of(e.Taken)) > 8  # a micro-batch at a time
    assert isinstance(world.coordinator, Coordinator)
