"""A fault excuses only the end that it can have caused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from simulation_support import plain

from asyncrl.simulation.causes import unexplained
from asyncrl.simulation.injector import Injector
from asyncrl.simulation.virtual_clock import VirtualClock

KILLED = "rollout-1 ended with code -9"
STALLED = "no token and no step for 60 s (supervision.stall_s): the trainer waits"
FAILED = (
    "no token and no step for 60 s (supervision.stall_s): all of the last 14 episodes of agents-0 "
    "failed, the last one by `exit`; the next ones start one at a time"
)


def injector() -> Injector:
    world: Any = SimpleNamespace()
    return Injector(world, VirtualClock())


def process(name: str) -> Any:
    return SimpleNamespace(name=name)


async def test_a_fault_excuses_the_end_of_its_own_victim_alone(autojump_clock: object) -> None:
    found = injector()
    found.happened("kill_rollout", process("rollout-0"))
    assert "no fault explains" in unexplained(KILLED, plain(), found)
    found.happened("kill_rollout", process("rollout-1"))
    assert not unexplained(KILLED, plain(), found)


async def test_a_fault_that_was_over_long_before_excuses_nothing(autojump_clock: object) -> None:
    found = injector()
    found.happened("kill_rollout", process("rollout-1"))
    await trio.sleep(100)
    assert unexplained(KILLED, plain(), found)


async def test_a_fault_that_lasts_excuses_until_its_life_is_over(autojump_clock: object) -> None:
    found = injector()
    found.for_good("verifier_hangs", process("reward-0"))
    await trio.sleep(1000)
    assert not unexplained(STALLED, plain(), found)
    found.life()
    await trio.sleep(1000)
    assert unexplained(STALLED, plain(), found)


async def test_what_is_over_does_not_grow_old_while_the_clock_leaps(autojump_clock: object) -> None:
    found = injector()
    found.happened("kill_rollout", process("rollout-1"))
    found.happened("clock_jumps").until += 200
    await trio.sleep(200)
    assert not unexplained(KILLED, plain(), found)


@pytest.mark.parametrize("kind", ["verifier_raises", "kill_rollout", "checkpoint_fails"])
async def test_a_fault_that_cannot_have_such_an_end_excuses_nothing(
    kind: str, autojump_clock: object
) -> None:
    found = injector()
    found.happened(kind)
    assert unexplained(STALLED, plain(), found)


async def test_an_end_that_no_fault_has_is_said_to_be_one(autojump_clock: object) -> None:
    assert "for a reason that no fault has" in unexplained("boredom", plain(), injector())


async def test_agents_that_fail_excuse_the_standstill_that_names_them_alone(
    autojump_clock: object,
) -> None:
    slow, failing = injector(), injector()
    slow.happened("agent_slow", process("agents-0"))
    failing.happened("agent_gives_up", process("agents-0"))
    assert unexplained(FAILED, plain(), slow)
    assert unexplained(STALLED, plain(), failing)
    assert not unexplained(FAILED, plain(), failing)
