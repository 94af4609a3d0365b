"""Lease deadlines follow the running 95th percentile, between a floor and rollout.lease_s."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.actors.coordinator.leases import (
    ENOUGH,
    FLOOR_S,
    MULTIPLE,
    WINDOW,
    LeaseTable,
    LeaseTimes,
)

SECONDS = st.floats(0, 1e4, allow_nan=False)


@given(st.lists(SECONDS, min_size=ENOUGH, max_size=300), st.integers(0, 2 * WINDOW))
def test_the_percentile_is_that_of_the_window(seconds: list[float], padding: int) -> None:
    times = LeaseTimes(600.0)
    everything = [float(n % 7) for n in range(padding)] + seconds
    for each in everything:
        times.took(each)
    window = everything[-WINDOW:]
    p95_s = times.p95_s
    assert p95_s in window
    assert sum(each <= p95_s for each in window) >= 0.95 * len(window)
    assert sum(each < p95_s for each in window) < 0.95 * len(window)


@given(st.lists(SECONDS, max_size=300), st.floats(1, 1e4))
def test_a_deadline_is_never_over_the_limit_and_under_the_floor_only_where_the_limit_is(
    seconds: list[float], max_s: float
) -> None:
    times = LeaseTimes(max_s)
    for number, each in enumerate(seconds, 1):
        times.took(each)
        assert min(max_s, FLOOR_S) <= times.deadline_s <= max_s
        if number < ENOUGH:
            assert times.p95_s is None and times.deadline_s == max_s


def test_a_deadline_is_a_multiple_of_the_percentile() -> None:
    times = LeaseTimes(600.0)
    for number in range(1000):
        times.took(100.0 if number % 10 == 0 else 10.0)  # a tenth takes 100 s
    assert times.p95_s == 100.0 and times.deadline_s == MULTIPLE * 100.0


def test_where_more_than_a_twentieth_runs_out_deadlines_grow_until_it_does_not() -> None:
    """Responses become thirty times longer. What runs out goes on, and its rest is another
    lease."""
    times, chance = LeaseTimes(math.inf), random.Random(0)
    for _ in range(WINDOW):
        times.took(chance.uniform(5.0, 10.0))
    assert times.deadline_s < 41.0
    over = 0
    for _ in range(2 * WINDOW):
        left = chance.uniform(150.0, 300.0)
        while left > times.deadline_s:
            left -= times.deadline_s
            over += 1
            times.took(times.deadline_s)
        times.took(left)
    assert times.deadline_s > 300.0 and over < WINDOW // 3


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.floats(0, 50)), max_size=60))
def test_what_runs_out_is_named_once_and_in_order(actions: list[tuple[int, int, float]]) -> None:
    """Against a table that is searched."""
    leased, table, now = LeaseTable(10.0), dict[int, tuple[int, float]](), 0.0
    for attempt, (rollout, action, seconds) in enumerate(actions):
        if action == 0 and rollout not in table:
            leased.give(rollout, attempt, 0, now)
            table[rollout] = attempt, now + 10.0
        elif action == 1:
            if table.pop(rollout, None) is not None:
                leased.back(rollout)
        else:
            now += seconds
            due = sorted((deadline, id) for id, (_, deadline) in table.items() if deadline <= now)
            assert leased.over(now) == [id for _, id in due]
            assert leased.over(now) == []
            for _, id in due:
                leased.back(id)
                del table[id]


def test_the_oldest_leases_are_found() -> None:
    leased = LeaseTable(10.0)
    for rollout in range(20):
        leased.give(rollout, 1, 0, float(rollout * 7 % 20))
    assert [held.since for _, held in leased.oldest(3)] == [0.0, 1.0, 2.0]
