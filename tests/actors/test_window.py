"""A window bounds lag in the real coordinator, too: `depth + ceil((W - 1) / batch_groups)` is
reached, and never passed (docs/lag.md)."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
import trio
from numpy import float32, full, int32
from scripted_world import ScriptedWorld, configured
from some_values import some

from asyncrl.config import Config
from asyncrl.config.flow import admission_policy
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script
from asyncrl.experience import events as e
from asyncrl.messages import Scored

SIZE = 3
TOKENS = 40
SETTINGS = [  # depth, batch_groups, window, overprovision, the largest lag by hand
    (1, 1, 1, 1.0, 1),
    (1, 2, 1, 1.0, 1),
    (1, 2, 2, 1.0, 2),
    (1, 2, 3, 1.0, 2),
    (1, 2, 4, 1.0, 3),
    (2, 1, 3, 1.0, 4),
    (0, 2, 1, 2.0, 1),
    (0, 2, 4, 1.5, 2),
    (1, 3, 4, 1.0, 2),
]


def of(
    depth: int, batch_groups: int, window: int, overprovision: float, most: int, unit: str
) -> Config:
    """A run in which a lag over `most` would be masked."""
    alone = {"unit": unit, "advantage": "first_k" if unit == "rollout" else "grpo"}
    return configured(
        task={"eval_size": 0},
        engine={"slots": 200, "chunk_tokens": 1},
        rollout={
            "group_size": SIZE,
            "max_new_tokens": TOKENS,
            "k_min": 2,
            "overprovision": overprovision,
            "lease_s": 1000.0,
        },
        train={
            "steps": most + 4,
            "batch_groups": batch_groups,
            "eval_every": 0,
            "checkpoint_every": 0,
        }
        | alone,
        staleness={"max_lag": most, "depth": depth, "window": window, "on_stale": "mask"},
        supervision={"stall_s": 1000.0},
    )


def written(tokens: int, seconds: float) -> Script:
    return Script(full(tokens, 5, int32), full(tokens, -1.0, float32), seconds, "stop")


@pytest.mark.explore
@pytest.mark.parametrize("unit", ["group", "rollout"])
@pytest.mark.parametrize(("depth", "batch_groups", "window", "overprovision", "most"), SETTINGS)
async def test_the_bound_of_a_window_is_met_and_reached(
    depth: int,
    batch_groups: int,
    window: int,
    overprovision: float,
    most: int,
    unit: str,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The last group that may start beside the first one ends when nothing else may be taken any
    more."""
    if overprovision == 1.0:
        assert most == depth + math.ceil((window - 1) / batch_groups)
    world = ScriptedWorld(of(depth, batch_groups, window, overprovision, most, unit))
    last = depth * batch_groups + math.ceil(overprovision * batch_groups) - 1

    def script(request: Request) -> Script:
        slow = request.key == last * SIZE
        return written((TOKENS if slow else 2) - request.prefix_tokens, 1.0)

    world.script = script
    outcome = await world.run()
    world.check()
    assert outcome.ok, outcome.reason
    assert max(world.trained_lags()) == most
    assert not world.store.experience.ledger.tokens.discarded.get("stale")


@pytest.mark.parametrize("unit", ["group", "rollout"])
@pytest.mark.parametrize("seed", some(range(6)))
async def test_nothing_is_ever_over_the_bound_of_a_window_however_long_responses_are(
    seed: int, unit: str, autojump_clock: trio.testing.MockClock
) -> None:
    draw = random.Random(seed)
    depth, batch_groups, window, overprovision, most = draw.choice(SETTINGS)
    world = ScriptedWorld(of(depth, batch_groups, window, overprovision, most, unit))

    def script(request: Request) -> Script:
        length = min(TOKENS, 1 + int(draw.paretovariate(0.7)))
        return written(max(1, length - request.prefix_tokens), draw.uniform(0.1, 1.0))

    world.script = script
    outcome = await world.run()
    world.check()
    assert outcome.ok, outcome.reason
    assert max(world.trained_lags()) <= most
    assert not world.store.experience.ledger.tokens.discarded.get("stale")


async def test_a_step_that_all_live_groups_close_leaves_those_that_started_for_filtered_ones(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """No step ever has its tokens: two groups may be live, and close it. The first 12 prompts are
    filtered, so six may be live at the end: what waits for two steps has a lag of 2 at most."""
    config = of(1, 1, 1, 1.0, 2, "group")
    config = msgspec.structs.replace(
        config,
        rollout=msgspec.structs.replace(config.rollout, filter="zero_variance"),
        train=msgspec.structs.replace(config.train, step_tokens=10**6, steps=12),
    )
    policy = admission_policy(config)
    assert (policy.max_live, policy.max_live_filtered, policy.worst_lag) == (2, 6, 2)
    world = ScriptedWorld(config)
    world.script = lambda request: written(2 + request.key % SIZE - request.prefix_tokens, 0.1)
    world.verifiers._verdict = lambda split, prompt_index, ids: Scored(
        float(prompt_index >= 12 and len(ids) > 8)
    )
    outcome = await world.run()
    world.check()
    assert outcome.ok, outcome.reason
    assert 0 < max(world.trained_lags()) <= policy.worst_lag


async def test_without_a_window_a_slow_response_is_overtaken_for_as_long_as_it_takes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(of(1, 2, 0, 1.0, 2, "group"))

    def script(request: Request) -> Script:
        return written((TOKENS if request.key == 3 * SIZE else 2) - request.prefix_tokens, 1.0)

    world.script = script
    assert (await world.run()).ok
    world.check()
    taken = {
        rollout // SIZE: event.step
        for event in world.log.events
        if isinstance(event, e.Taken)
        for rollout in event.rollouts
    }
    assert taken[3] == 5 and world.store.experience.ledger.tokens.discarded["stale"] > 0
