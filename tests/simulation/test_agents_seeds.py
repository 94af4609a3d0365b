"""Runs whose rollouts are episodes of scripted agents: the whole coordinator and the product's
agents actors, while agents, actors and everything fail."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from msgspec.structs import replace

from asyncrl.config.rules import contradictions
from asyncrl.experience import events as e
from asyncrl.simulation import run
from asyncrl.simulation.agent_faults import AGENT_KINDS, OF_CROWDED
from asyncrl.simulation.checker.event_checks import CHECKS
from asyncrl.simulation.command import PLAYED, Tally, tally
from asyncrl.simulation.faults import agents_plan, crowded
from asyncrl.simulation.run import simulate_agents
from asyncrl.simulation.shapes import drawn, drawn_agents
from asyncrl.simulation.themes import OF_AGENTS

SHARES = [range(2), range(2, 5), *(range(start, start + 5) for start in range(5, 100, 5))]
FIRST, OF_CI, OF_SOAK = SHARES[0], SHARES[1:6], SHARES[6:]
OF_BOTH = PLAYED // 2
"""Remainder of the seeds of which `test_seeds.py` has this run, too."""
tallied = cache(tally)
OF_A_SWEEP = {
    "agents that thought for longer than a stall, and whose actor is lost, are no stall": (
        *(2108, 1052, 816, 2326),
    ),
    "a pause after agents that all failed is no stall": (1084, 589, 3596),
    "a kill at a message is of the process whose message it is": (2156, 472, 3461, 3765),
    "a last checkpoint may fail before agents are evaluated": (2985,),
}
"""Seeds that failed once, by what was mended; the quickest is first."""

THINKING_LONGER = 5101
"""A seed whose agents think for longer than a fault waits at a time (`injector.PATIENCE_S`)."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [
        FIRST,
        *(pytest.param(seeds, marks=pytest.mark.explore) for seeds in OF_CI),
        *(pytest.param(seeds, marks=pytest.mark.soak) for seeds in OF_SOAK),
    ],
    ids=lambda seeds: f"{seeds.start}:{seeds.stop}",
)
def test_every_invariant_holds_after_every_event_of_agents(seeds: range) -> None:
    own = tuple(seed for seed in seeds if seed % PLAYED != OF_BOTH)
    found = tallied(own, "agents")
    assert not found.failures, "\n".join(
        f"asyncrl simulate --agents --seed {failure.seed}: {failure.violation}"
        for failure in found.failures
    )
    assert found.played == found.seeds == len(own)
    ofs = {
        "nothing is sampled again",
        "what agents said",
        "contexts stay",
        "strands",
        "failed calls",
    }
    assert min(found.checks[name] for name in ofs) > 5 * len(own)


@pytest.mark.soak
@pytest.mark.slow
def test_each_kind_of_agents_fault_is_met_by_at_least_ten_of_the_seeds() -> None:
    whole = Tally()
    for seeds in SHARES:
        whole.add(tallied(seeds, "agents"))
    rare = {kind: n for kind in AGENT_KINDS if (n := whole.seeds_with.get(kind, 0)) < 10}
    assert not rare


@pytest.mark.explore
@pytest.mark.parametrize("said", OF_A_SWEEP)
def test_what_a_sweep_found_is_mended(said: str) -> None:
    first, *_ = OF_A_SWEEP[said]
    assert not tallied(range(first, first + 1), "agents").failures


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("said", OF_A_SWEEP)
def test_all_that_a_sweep_found_is_mended(said: str) -> None:
    for seed in OF_A_SWEEP[said]:
        assert not tallied(range(seed, seed + 1), "agents").failures, seed


@pytest.mark.explore
def test_a_seed_of_agents_replays_to_the_last_event() -> None:
    assert simulate_agents(1) == simulate_agents(1)


def test_an_agents_run_is_the_seeds_alone_and_leaves_its_other_run_as_it_is() -> None:
    for seed in range(1, 40):
        before = drawn(seed).config
        assert drawn_agents(seed).config == drawn_agents(seed).config != before
        assert drawn(seed).config == before
        assert agents_plan(seed) == agents_plan(seed)
    assert agents_plan(25) == []


@pytest.mark.explore
def test_a_crowded_run_has_faults_of_its_own() -> None:
    ones = [seed for seed in range(100) if crowded(seed)]
    assert len(ones) == 9 and all(drawn_agents(seed).cling == crowded(seed) for seed in range(20))
    report = simulate_agents(ones[0])
    assert report.ok and report.faults.keys() >= OF_CROWDED.keys()


def test_agents_have_settings_that_do_not_contradict_each_other() -> None:
    shapes = [drawn_agents(seed) for seed in range(100)]
    for shape in shapes:
        wrong = [keys for keys, _ in contradictions(shape.config)]
        # a fake engine needs no server
        assert all("engine.sglang.urls" in keys for keys in wrong), wrong
    themes = Counter(seed // 2 % len(OF_AGENTS) for seed in range(1, 100, 2))
    assert min(themes.values()) >= 5
    assert {shape.steady for shape in shapes} == {True, False}
    assert {shape.config.rollout.truncated for shape in shapes} == {"keep", "mask"}


def test_every_kind_of_event_has_a_check() -> None:
    assert set(CHECKS) == set(e.AnyEvent.__args__)


@pytest.mark.explore
def test_agents_that_hang_late_are_waited_for_and_hang_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run, of small groups that are trained whole, takes 2,472 virtual seconds, of which one
    agent hangs for 600: it is slow, and not stuck. The fault, of 1, 3 or 8 hangs, waits again and
    does not begin again."""
    monkeypatch.setattr(run, "LIMIT_S", 2100.0)
    drawn = drawn_agents(THINKING_LONGER).config
    config = replace(
        drawn,
        train=replace(drawn.train, keep="all", keep_members=0),
        rollout=replace(drawn.rollout, group_size=2, group_size_max=4),
    )
    report = simulate_agents(THINKING_LONGER, config=config)
    assert report.ok and report.virtual_s > run.LIMIT_S
    assert 1 <= report.faults["agent_hangs"] <= 8


@pytest.mark.explore
def test_an_agent_that_is_cut_off_leaves_what_it_was_reading() -> None:
    """It fails amid two calls, of a full episode: that is an end, with both answers left."""
    assert simulate_agents(337).ok
