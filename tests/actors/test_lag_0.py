"""At lag 0 the weights are a function of the seed: what is trained together, and when, does not depend on who is complete first."""

from __future__ import annotations

import random

import pytest
import trio
from actor_world import STOP, VOCABULARY, World, configured

from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script, hashed
from asyncrl.experience import events as e


async def batches(pace: int, **sections: dict[str, object]) -> tuple[World, list[list[int]]]:
    """The prompts of each micro-batch, after its step, of a run whose rollouts take as long as this seed says."""
    train = {"batch_groups": 5, "steps": 4, "micro_tokens": 150}
    world = World(configured(staleness={"max_lag": 0, "depth": 0}, train=train, engine={"slots": 24}, **sections))
    written = hashed(vocab_size=VOCABULARY, stop_id=STOP, mean_tokens=10)
    draw = random.Random(pace)

    def script(request: Request) -> Script:
        tokens = written(request)
        return Script(tokens.ids, tokens.behaviour, draw.uniform(0.001, 0.1), tokens.ends)

    world.script = script
    assert (await world.run()).ok
    world.check()
    items = {event.group: event.item for event in world.log.events if isinstance(event, e.Admitted)}
    return world, [[batch.step, *dict.fromkeys(items[sample.group] for sample in batch.samples)] for batch, _ in world.learner.batches]


@pytest.mark.parametrize("how", ["none", "zero_variance"])
@pytest.mark.parametrize("pace", range(1, 6))
async def test_what_is_trained_together_does_not_depend_on_who_is_complete_first(
    how: str, pace: int, autojump_clock: trio.testing.MockClock
) -> None:
    _, found = await batches(pace, rollout={"filter": how})
    _, due = await batches(0, rollout={"filter": how})
    assert found == due and len(found) > 4


async def test_the_first_micro_batch_is_trained_while_the_last_group_is_generated(autojump_clock: trio.testing.MockClock) -> None:
    world, _ = await batches(1)
    events = world.log.events
    taken = [n for n, event in enumerate(events) if isinstance(event, e.Taken) and event.step == 0]
    sealed = [n for n, event in enumerate(events) if isinstance(event, e.Sealed)]
    assert any(taken[0] < n < taken[-1] for n in sealed)
