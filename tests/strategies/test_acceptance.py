"""The filter as a part of admission: how much is started for what will be filtered, and when there
is no point in going on."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.experience.history import RECENT
from asyncrl.strategies.acceptance import FACTOR, LATELY, PRIOR, accept_rate, below_floor, wanted

finished = st.lists(st.booleans(), max_size=200).map(bytes)
rates = st.floats(0.01, 1)


def test_the_share_starts_at_one_and_follows_what_finished_lately() -> None:
    assert accept_rate(b"") == 1
    assert accept_rate(b"\0") == pytest.approx(4 / 5), "one group is not much"
    assert accept_rate(b"\0\1" * 500) == pytest.approx(36 / 68)
    assert (
        accept_rate(b"\1" * 1000 + b"\0" * 64) == accept_rate(b"\0" * 64) == pytest.approx(4 / 68)
    )
    assert accept_rate(b"\0" * 1000 + b"\1" * 64) == 1


@given(finished)
def test_the_share_is_one_without_a_filter_and_never_zero(recent: bytes) -> None:
    last = list(recent)[-LATELY:]
    assert accept_rate(recent) == (sum(last) + PRIOR) / (len(last) + PRIOR)
    assert 0 < accept_rate(bytearray(recent)) <= 1
    assert (accept_rate(recent) == 1) == all(last)


def test_what_is_started_for_a_step_of_sixteen() -> None:
    assert wanted(16, 0, 1.0) == 16
    assert wanted(16, 0, 0.5) == 32
    assert wanted(16, 12, 0.5) == 20, "four are missing, so eight of the unfinished are wanted"
    assert wanted(16, 16, 0.5) == 16
    assert wanted(16, 20, 0.5) == 16, "surplus is no reason for more"
    assert wanted(16, 0, 0.01) == 16 * FACTOR
    assert wanted(16, 0, 0.5, most=24) == 24, "more could not all be trained within max_lag"
    assert wanted(16, 0, 0.5, most=8) == 16


@given(st.integers(1, 200), st.integers(0, 300), rates, rates, st.none() | st.integers(0, 500))
def test_never_less_than_without_a_filter_nor_more_than_the_bounds(
    cap: int, passed: int, one: float, other: float, most: int | None
) -> None:
    got = wanted(cap, passed, one, most)
    assert cap <= got <= FACTOR * cap
    assert wanted(cap, passed, 1.0, most) == cap
    assert most is None or got <= max(cap, most)
    assert wanted(cap, passed, min(one, other), most) >= wanted(cap, passed, max(one, other), most)
    assert wanted(cap, passed + 1, one, most) <= got
    if most is None:
        missing = max(0, cap - passed)
        assert got >= cap + min((1 / one - 1) * missing, (FACTOR - 1) * missing) - 1e-6


def waves(batch: int, share: float, seed: int, *, aware: bool) -> tuple[int, int]:
    """Groups that all finish before others start, until a batch has passed: how often that is, and
    how many passed in the end."""
    random, passed, times, recent = Random(seed), 0, 0, b"\0\0\0\1" * 100
    while passed < batch:
        live = wanted(batch, passed, accept_rate(recent) if aware else 1.0)
        passed += sum(random.random() < share for _ in range(live - min(passed, batch)))
        times += 1
    return times, passed


def test_a_step_is_filled_at_once_instead_of_in_turn() -> None:
    """A quarter of the groups pass, and that is known."""
    aware, unaware = (
        [waves(16, 0.25, seed, aware=aware) for seed in range(200)] for aware in (True, False)
    )
    mean = [sum(times for times, _ in runs) / len(runs) for runs in (aware, unaware)]
    assert mean[0] < 3 < 10 < mean[1]
    surplus = [sum(passed for _, passed in runs) / len(runs) - 16 for runs in (aware, unaware)]
    assert surplus[1] == 0 and surplus[0] < 2, "what is left over serves the next step"


def test_it_ends_where_nearly_nothing_passes_for_as_long_as_was_said() -> None:
    patient = 100
    assert below_floor(b"\0" * 99, 0.05, patient) == ""
    told = below_floor(b"\0" * 100, 0.05, patient)
    assert told.startswith(
        "of the last 100 groups none had rewards that differ, and rollout.accept_floor asks for "
        "5.00%"
    )
    assert below_floor(b"\0" * 95 + b"\1" * 5, 0.05, patient) == ""
    assert "groups 4 had" in below_floor(b"\1" * 900 + b"\0" * 96 + b"\1" * 4, 0.05, patient)
    assert below_floor(b"\0" * 99 + b"\1", 0.0, patient) == ""
    assert below_floor(b"\0" * 100, 0.0, patient), "none at all is below any floor"


def test_a_patience_that_is_longer_than_the_memory_ends_all_the_same() -> None:
    assert below_floor(bytearray(RECENT), 0.01, 10 * RECENT)


@given(finished, st.floats(0, 0.99), st.integers(1, 250))
def test_it_never_ends_where_the_floor_is_met_or_too_few_have_finished(
    recent: bytes, floor: float, patience: int
) -> None:
    last = list(recent)[-patience:]
    assert bool(below_floor(recent, floor, patience)) == (
        len(last) == patience and (not any(last) or sum(last) < floor * patience)
    )
