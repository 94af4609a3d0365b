"""At lag 0 the weights are a function of the seed: what is trained together, and when, does not
depend on who is complete first."""

from __future__ import annotations

import random

import pytest
import trio
from scripted_parts import STOP, VOCABULARY
from scripted_world import ScriptedWorld, configured
from some_values import some

from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script, hashed
from asyncrl.experience import events as e

TRAIN: dict[str, object] = {"batch_groups": 5, "steps": 4, "micro_tokens": 150}


async def batches(
    pace: int, **sections: dict[str, object]
) -> tuple[ScriptedWorld, list[list[int]]]:
    """The prompts of each micro-batch, after its step, of a run whose rollouts take as long as this
    seed says."""
    settings = {
        "staleness": {"max_lag": 0, "depth": 0},
        "train": TRAIN,
        "engine": {"slots": 24},
    } | sections
    world = ScriptedWorld(configured(**settings))
    written = hashed(vocab_size=VOCABULARY, stop_id=STOP, mean_tokens=10)
    draw = random.Random(pace)

    def script(request: Request) -> Script:
        tokens = written(request)
        return Script(tokens.ids, tokens.behaviour, draw.uniform(0.001, 0.1), tokens.ends)

    world.script = script
    assert (await world.run()).ok
    world.check()
    items = {
        event.group: event.prompt_index
        for event in world.log.events
        if isinstance(event, e.Admitted)
    }
    return world, [
        [batch.step, *dict.fromkeys(items[sample.group] for sample in batch.samples)]
        for batch, _ in world.learner.batches
    ]


@pytest.mark.parametrize("how", ["none", "zero_variance"])
@pytest.mark.parametrize("pace", some(range(1, 6)))
async def test_what_is_trained_together_does_not_depend_on_who_is_complete_first(
    how: str, pace: int, autojump_clock: trio.testing.MockClock
) -> None:
    _, found = await batches(pace, rollout={"filter": how})
    _, due = await batches(0, rollout={"filter": how})
    assert found == due and len(found) > 4


async def test_the_first_micro_batch_is_trained_while_the_last_group_is_generated(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world, _ = await batches(1)
    events = world.log.events
    taken = [n for n, event in enumerate(events) if isinstance(event, e.Taken) and event.step == 0]
    sealed = [n for n, event in enumerate(events) if isinstance(event, e.Sealed)]
    assert any(taken[0] < n < taken[-1] for n in sealed)


async def test_samples_depend_on_the_prompts_place_in_the_data_and_not_on_what_was_evaluated(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def sampled(world: ScriptedWorld) -> dict[tuple[int, int], bytes]:
        owners, ids = {}, dict[tuple[int, int], bytes]()
        for event in world.log.events:
            if isinstance(event, e.Admitted) and event.split == "train":
                owners |= {
                    event.first + member: (event.prompt_index, member)
                    for member in range(event.size)
                }
            elif isinstance(event, e.Extended) and event.rollout in owners:
                ids[owners[event.rollout]] = ids.get(owners[event.rollout], b"") + event.ids
        return ids

    often, _ = await batches(1, task={"eval_size": 4}, train=TRAIN | {"eval_every": 1})
    never, _ = await batches(2, task={"eval_size": 0})
    assert sampled(often) == sampled(never) and len(set(sampled(never).values())) > 10


async def test_a_prompt_that_comes_again_or_starts_again_is_answered_with_draws_of_its_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    stale = {"max_lag": 1, "depth": 1, "on_stale": "restart"}
    again = ScriptedWorld(
        configured(
            task={"train_size": 2, "eval_size": 0},
            train={"steps": 8, "checkpoint_every": 0},
            staleness=stale,
        )
    )
    keys: dict[int, int] = {}
    written = hashed(vocab_size=VOCABULARY, stop_id=STOP, mean_tokens=10)
    draw = random.Random(0)

    def script(request: Request) -> Script:
        keys[request.rollout] = request.key
        tokens = written(request)
        return Script(tokens.ids, tokens.behaviour, draw.uniform(0.001, 0.1), tokens.ends)

    again.script = script
    assert (await again.run()).ok
    assert any(event.restarts is not None for event in again.of(e.Admitted))
    assert len(set(keys.values())) == len(keys) > 8 * 2 * 4
