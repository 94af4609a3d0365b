"""The share of seeds that every change has to pass: 200 runs with faults, each kind of which at
least ten of them meet."""

from __future__ import annotations

from functools import cache

import pytest

from asyncrl.simulation.command import Tally, tally
from asyncrl.simulation.fault_kinds import KINDS
from asyncrl.simulation.faults import plan

SHARES = [range(start, start + 25) for start in range(0, 200, 25)]
tallied = cache(tally)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [pytest.param(s, marks=[pytest.mark.explore] * (s.start >= 100)) for s in SHARES],
    ids=lambda seeds: f"{seeds.start}:{seeds.stop}",
)
def test_every_invariant_holds_after_every_event(seeds: range) -> None:
    found = tallied(seeds)
    assert not found.failures, "\n".join(
        f"asyncrl simulate --seed {failure.seed}: {failure.violation}" for failure in found.failures
    )
    assert found.seeds == len(seeds) and min(found.checks.values()) > 0


@pytest.mark.explore
@pytest.mark.slow
def test_each_kind_of_fault_is_met_by_at_least_ten_of_the_seeds() -> None:
    whole = Tally()
    for seeds in SHARES:
        whole.add(tallied(seeds))
    rare = {
        kind: whole.seeds_with.get(kind, 0) for kind in KINDS if whole.seeds_with.get(kind, 0) < 10
    }
    assert not rare and whole.seeds_with.keys() == KINDS.keys()
    assert (
        whole.lost_tail > 100 and whole.checks["synchronous"] >= 20 and whole.checks["redo"] > 500
    )


def test_a_plan_is_the_seeds_alone_and_some_seeds_have_none() -> None:
    assert [plan(seed) for seed in range(30)] == [plan(seed) for seed in range(30)]
    assert plan(0) == plan(25) == [] and all(1 <= len(plan(seed)) <= 10 for seed in range(1, 25))
