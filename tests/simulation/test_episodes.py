"""Episodes of scripted agents, while agents, actors, engines and the coordinator fail: each event
and each message is judged by a checker of its own."""

from __future__ import annotations

from collections import Counter

import pytest

from asyncrl.simulation.agent_script import ScriptedAsk, script
from asyncrl.simulation.episodes.episode_world import play

SEEDS = 200
FAULTS = {
    "agents_actor_dies",
    "agent_hangs",
    "agent_raises",
    "agent_repeats",
    "coordinator_dies",
    "engine_dies",
    "engine_gives_back",
    "group_stale",
}


@pytest.mark.explore
def test_every_invariant_of_episodes_holds_after_every_message() -> None:
    faults, checks, discarded = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(SEEDS):
        report = play(seed)
        assert report.violation is None, f"seed {seed} violates {report.violation}"
        faults.update(report.faults)
        checks.update(report.checks)
        discarded.update(report.discarded)
    assert faults.keys() == FAULTS and min(faults.values()) > 50, faults
    assert min(checks.values()) >= SEEDS and checks["strands"] > 400, checks
    assert {"orphaned", "unused", "late", "raised", "agent_timeout"} <= discarded.keys()


@pytest.mark.soak
def test_more_seeds_hold_too() -> None:
    for seed in range(SEEDS, 10 * SEEDS):
        assert (found := play(seed).violation) is None, f"seed {seed} violates {found}"


def test_a_seed_is_the_same_run_each_time_and_each_has_agents_of_its_own() -> None:
    assert play(7) == play(7)
    assert len({tuple(play(seed).kinds.values()) for seed in range(0, 100, 10)}) == 10


def test_a_steady_agent_does_the_same_again_and_an_unsteady_one_does_not() -> None:
    def first(seed: int, attempt: int, unsteady: bool) -> list[ScriptedAsk]:
        act = next(script(seed, attempt, unsteady=unsteady))
        assert isinstance(act, list)
        return act

    assert all(first(seed, 1, False) == first(seed, 2, False) for seed in range(20))
    assert any(first(seed, 1, True) != first(seed, 2, True) for seed in range(20))
