"""The division of cores between the two sides of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config.cores import divide_cores

some_cores = st.lists(st.integers(0, 255), min_size=1, max_size=32, unique=True)


@given(some_cores, st.integers(0, 6), st.integers(0, 12), st.integers(0, 40))
def test_shares(available, trainers, rollouts, trainer_cores):
    shares = divide_cores(available, trainers, rollouts, trainer_cores)
    everyone = shares.trainers + shares.rollouts
    assert (len(shares.trainers), len(shares.rollouts)) == (trainers, rollouts)
    assert all(share and len(set(share)) == len(share) for share in everyone), (
        "each has at least one core"
    )
    assert {core for share in everyone for core in share} <= set(available)
    assert shares.others == tuple(available)
    used = [core for share in everyone for core in share]
    if len(available) >= trainers + rollouts and trainers and rollouts and len(available) > 1:
        assert sorted(used) == sorted(available), "each core has one holder, and none is left over"
        for side in (shares.trainers, shares.rollouts):
            assert max(map(len, side)) - min(map(len, side)) <= 1
        wish = trainer_cores or len(available) // 2
        got = sum(map(len, shares.trainers))
        assert got == wish or (got == trainers > wish) or (got == len(available) - rollouts < wish)
    elif len(available) > 1 and trainers and rollouts:
        assert not {c for s in shares.trainers for c in s} & {
            c for s in shares.rollouts for c in s
        }, "the two sides do not share"
        for side in (shares.trainers, shares.rollouts):
            used = [core for share in side for core in share]
            assert len(set(used)) == len(used) or all(len(share) == 1 for share in side), (
                "a shared core is a process's only one"
            )


@pytest.mark.parametrize(
    ("available", "trainers", "rollouts", "trainer_cores", "expected"),
    [
        ([5], 1, 2, 0, ([(5,)], [(5,), (5,)])),
        ([0, 1], 1, 1, 0, ([(0,)], [(1,)])),
        ([0, 1], 1, 3, 0, ([(0,)], [(1,), (1,), (1,)])),
        ([0, 1, 2], 1, 1, 0, ([(0,)], [(1, 2)])),
        ([0, 1, 2, 3], 1, 1, 3, ([(0, 1, 2)], [(3,)])),
        ([0, 1, 2, 3], 1, 1, 9, ([(0, 1, 2)], [(3,)])),
        ([0, 1, 2, 3], 1, 3, 2, ([(0,)], [(1,), (2,), (3,)])),
        ([0, 1, 2, 3], 0, 2, 0, ([], [(0, 1), (2, 3)])),
    ],
)
def test_shares_of_small_machines(available, trainers, rollouts, trainer_cores, expected):
    shares = divide_cores(available, trainers, rollouts, trainer_cores)
    assert (shares.trainers, shares.rollouts) == expected


@given(some_cores, st.integers(1, 6), st.integers(1, 6), st.integers(0, 40), st.integers(1, 6))
def test_lent_actors_have_cores_of_trainers_and_nobody_has_others(
    available, trainers, rollouts, trainer_cores, lent
):
    own = divide_cores(available, trainers, rollouts, trainer_cores)
    shares = divide_cores(available, trainers, rollouts + lent, trainer_cores, lent)
    assert (shares.trainers, shares.others) == (own.trainers, own.others)
    assert shares.rollouts[:rollouts] == own.rollouts
    assert len(shares.rollouts) == rollouts + lent
    assert all(share in own.trainers for share in shares.rollouts[rollouts:])


def test_no_cores():
    with pytest.raises(ValueError, match="no cores"):
        divide_cores([], 1, 1, 0)
