"""The share of seeds that every change has to pass: 100 runs with faults, and 100 more in `make
soak`; at least ten of the 200 meet each kind of fault."""

from __future__ import annotations

from functools import cache

import pytest

from asyncrl.simulation.command import Tally, tally
from asyncrl.simulation.fault_kinds import KINDS
from asyncrl.simulation.faults import ALL_KINDS, plan

OF_A_SOAK = {
    "ledger": (5547, 896, 1933, 3196, 5246, 5668, 5889, 6035, 6568, 8247, 9412, 9851),
    "schedule": (402, 223, 1279, 2063, 2206, 3097, 6763),
    "curve": (4116, 510, 1260, 7333),
    "order": (1454, 7246, 8408, 9744),
    "redo": (1835, 9067),
    "publication": (416, 273, 9080, 2835),
    "proximal": (6504, 3627, 5203, 9493, 9519, 9701),
    "blame": (5538,),
    "version truth": (7077,),
}
"""Seeds of 10,000 that once failed, by what they said: the quickest first."""
SHARES = [
    *(range(3, 7), range(3), range(7, 10)),
    *(range(start, start + 10) for start in range(10, 200, 10)),
]
FIRST, OF_CI, OF_SOAK = SHARES[0], SHARES[1:12], SHARES[12:]
tallied = cache(tally)


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
def test_every_invariant_holds_after_every_event(seeds: range) -> None:
    found = tallied(seeds)
    assert not found.failures, "\n".join(
        f"asyncrl simulate --seed {failure.seed}: {failure.violation}" for failure in found.failures
    )
    assert found.seeds == len(seeds) and min(found.checks.values()) > 0


@pytest.mark.explore
@pytest.mark.parametrize("said", OF_A_SOAK)
def test_what_a_soak_found_is_mended(said: str) -> None:
    first, *_ = OF_A_SOAK[said]
    assert not tallied(range(first, first + 1)).failures


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("said", OF_A_SOAK)
def test_all_that_a_soak_found_is_mended(said: str) -> None:
    failed = [seed for seed in OF_A_SOAK[said] if tallied(range(seed, seed + 1)).failures]
    assert not failed


@pytest.mark.soak
@pytest.mark.slow
def test_each_kind_of_fault_is_met_by_at_least_ten_of_the_seeds() -> None:
    whole = Tally()
    for seeds in SHARES:
        whole.add(tallied(seeds))
    rare = {
        kind: whole.seeds_with.get(kind, 0) for kind in KINDS if whole.seeds_with.get(kind, 0) < 10
    }
    assert not rare and whole.seeds_with.keys() <= ALL_KINDS.keys()
    assert (
        whole.lost_tail > 100 and whole.checks["synchronous"] >= 15 and whole.checks["redo"] > 500
    )


def test_a_plan_is_the_seeds_alone_and_some_seeds_have_none() -> None:
    assert [plan(seed) for seed in range(30)] == [plan(seed) for seed in range(30)]
    assert plan(0) == plan(25) == [] and all(1 <= len(plan(seed)) <= 11 for seed in range(1, 25))
