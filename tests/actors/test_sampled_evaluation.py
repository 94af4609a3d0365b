"""Held-out prompts that are sampled beside the greedy answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec
import pytest
import trio
from scripted_parts import ScriptedVerifiers, by_length
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.admission import SAMPLED
from asyncrl.actors.coordinator.collect_status import collect_update
from asyncrl.experience import events as e
from asyncrl.experience.group import Group
from asyncrl.messages import Lease, Leases, Message, NoVerdict, Scored, Split, Verdict
from asyncrl.simulation.observer import WorldObserver

SAMPLING = {"samples": 4, "temperature": 0.7, "pass_at": [2, 4]}


def right_by_number(split: Split, prompt_index: int, ids: bytes) -> Verdict:
    """Held-out answers are right or wrong by their length."""
    return Scored(float(len(ids) // 4 % 3 == prompt_index % 3))


def held_out(first: Verdict, *others: Verdict) -> Callable[[Split, int, bytes], Verdict]:
    """Each answer to the first held-out prompt, and each to the others, has this verdict."""

    def verdict(split: Split, prompt_index: int, ids: bytes) -> Verdict:
        if split == "train":
            return by_length(split, prompt_index, ids)
        return others[0] if others and prompt_index else first

    return verdict


async def leased(world: ScriptedWorld) -> list[Lease]:
    """Run it, and return every lease of held-out prompts."""
    found: list[Lease] = []

    class Heard(WorldObserver):
        def on_told(self, start: str, message: Message, buffers: Sequence[object]) -> None:
            if isinstance(message, Leases):
                found.extend(lease for lease in message.leases if lease.split == "evaluation")

    world.observer = Heard()
    outcome = await world.run()
    world.check()
    assert outcome.ok
    return found


async def test_each_prompt_is_answered_once_greedily_and_sampled_as_often_as_asked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(evaluation=SAMPLING))
    leases = await leased(world)
    evaluation = world.coordinator.parts.evaluation
    assert sorted(evaluation.figures) == sorted(evaluation.accuracy) == [0, 2, 4]
    by_version = defaultdict(list)
    for lease in leases:
        by_version[lease.version].append((lease.temperature, lease.key))
    for version, asked in by_version.items():
        greedy = [key for temperature, key in asked if not temperature]
        sampled = sorted(key for temperature, key in asked if temperature)
        assert len(greedy) == 4 and {temperature for temperature, _ in asked} == {0.0, 0.7}
        # the draws of each sample are its own, and the same at every version
        assert sampled == [SAMPLED + n for n in range(16)], version


async def test_the_draws_of_samples_are_never_those_of_training(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(evaluation=SAMPLING))
    await world.run()
    admitted = [event for event in world.log.events if isinstance(event, e.Admitted)]
    trained = {event.key + n for event in admitted if event.split == "train" for n in range(16)}
    sampled = {event.key + n for event in admitted if event.sampled for n in range(event.size)}
    assert len(sampled) == 16 and not trained & sampled


async def test_the_figures_are_counted_from_the_verdicts_and_shown(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(evaluation=SAMPLING))
    world.verifiers = ScriptedVerifiers(right_by_number, 0.05)
    outcome = await world.run()
    assert outcome.ok
    groups: dict[int, e.Admitted] = {}
    right: dict[int, list[bool]] = defaultdict(list)
    whose: dict[int, int] = {}
    for event in world.log.events:
        match event:
            case e.Admitted(split="evaluation", version=4):
                groups[event.group] = event
                whose |= {event.first + n: event.group for n in range(event.size)}
            case e.Judged(rollout, Scored(reward)) if rollout in whose:
                right[whose[rollout]].append(reward == 1.0)
    greedy = [right[group] for group, event in groups.items() if not event.sampled]
    sampled = [right[group] for group, event in groups.items() if event.sampled]
    assert all(len(one) == 1 for one in greedy) and all(len(one) == 4 for one in sampled)
    update = collect_update(world.coordinator.parts)
    assert update.accuracy == sum(map(sum, greedy)) / 4
    assert update.evaluated["avg@4"] == sum(map(sum, sampled)) / 16
    assert update.evaluated["pass@4"] == sum(map(any, sampled)) / 4
    assert update.evaluated == world.coordinator_summary(outcome).evaluated


@pytest.mark.parametrize("fitting", [3, 0])
async def test_prompts_that_cannot_be_answered_are_in_no_figure(
    autojump_clock: trio.testing.MockClock, fitting: int
) -> None:
    """They counted as wrong, so that 0.000 could be the accuracy of prompts that were never
    asked."""
    world = ScriptedWorld(configured(evaluation=SAMPLING))
    world.source.prompts = lambda split, prompt_index: (
        "x" * (60 if split == "evaluation" and prompt_index >= fitting else 5)
    )
    world.verifiers = ScriptedVerifiers(held_out(Scored(1.0)), 0.05)
    outcome = await world.run()
    evaluation = world.coordinator.parts.evaluation
    shares = {"avg@4": 1.0, "pass@2": 1.0, "pass@4": 1.0} if fitting else {}
    assert set(evaluation.accuracy.values()) == {1.0 if fitting else None}
    assert all(figures == shares for figures in evaluation.figures.values())
    update, summary = collect_update(world.coordinator.parts), world.coordinator_summary(outcome)
    assert update.accuracy == summary.accuracy.end == (1.0 if fitting else None)
    assert (update.accuracy_asked, update.accuracy_prompts) == (fitting, 4)
    assert (summary.accuracy.asked, summary.accuracy.prompts) == (fitting, 4)


async def test_answers_without_a_verdict_have_no_accuracy_unless_another_has_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    found = []
    for first in (NoVerdict("timeout"), Scored(1.0)):
        world = ScriptedWorld(configured(evaluation=SAMPLING))
        world.verifiers = ScriptedVerifiers(held_out(first, NoVerdict("timeout")), 0.05)
        await world.run()
        evaluation = world.coordinator.parts.evaluation
        found.append((set(evaluation.accuracy.values()), evaluation.figures[4]))
    assert found == [
        ({None}, {}),
        ({0.25}, {"avg@4": 0.25, "pass@2": 0.25, "pass@4": 0.25}),
    ]


async def test_without_samples_nothing_but_greedy_answers_is_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured())
    leases = await leased(world)
    assert {lease.temperature for lease in leases} == {0.0} and len(leases) == 3 * 4
    assert not any(isinstance(n, e.Admitted) and n.sampled for n in world.log.events)
    assert collect_update(world.coordinator.parts).evaluated == {}


async def test_an_engine_that_dies_gives_up_the_samples_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    config = configured(
        evaluation=SAMPLING | {"samples": 8}, engine={"slots": 2}, rollout={"actors": 1}
    )
    world = ScriptedWorld(config)

    async def kill() -> None:
        await world.until(lambda: world.coordinator.parts.evaluation.running == 2)
        await trio.sleep(0.3)
        assert world.coordinator.parts.evaluation.running == 2
        world.kill("rollout-0")

    assert (await world.run(kill)).ok
    world.check()
    assert world.coordinator.parts.evaluation.figures.keys() >= {0, 4}
    assert not [g for g in world.store.experience.groups.values() if g.split == "evaluation"]


def test_an_event_of_before_is_greedy() -> None:
    """Journals that were written before samples existed have one field less."""
    event = e.Admitted(3, 24, 1, "evaluation", 0, b"\1\0\0\0", 8, 2)
    shorter = msgspec.msgpack.decode(msgspec.msgpack.encode(event))[:-1]
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(shorter), type=e.AnyEvent)
    assert old == event and isinstance(old, e.Admitted) and not old.sampled
    assert not Group.of(old, 0, (0.0, 0.0), 0).sampled
