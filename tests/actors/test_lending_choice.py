"""Lending is chosen by what loans brought and cost, and nothing flaps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.actors.coordinator.lending_choice import MARGIN, RECENT, LendingChoice, Loan

seconds = st.floats(0, 1e4)
loans = st.builds(Loan, seconds, seconds, seconds)


@given(st.lists(loans, max_size=40))
def test_it_goes_on_until_the_last_loans_were_not_worth_it(found: list[Loan]) -> None:
    choice = LendingChoice(1.0)
    for at, loan in enumerate(found, 1):
        choice.lent(loan)
        last = found[:at][-RECENT:]
        used = sum(one.used_s for one in last)
        cost = sum(one.before_s + one.back_s for one in last)
        if len(last) == RECENT and used < cost - 1e-6:
            assert (choice.worth, choice.changes) == (False, 1)
            return
        if len(last) < RECENT or used > cost + 1e-6:
            assert choice.worth and not choice.changes
        else:
            return  # too near to each other to say


def ceased(share: float, cost_s: float) -> LendingChoice:
    """A run that does not lend: its loans cost so much, and were of no use."""
    choice = LendingChoice(share)
    for _ in range(RECENT):
        choice.lent(Loan(cost_s, 0.0, 0.0))
    assert not choice.worth and choice.cost_s == pytest.approx(cost_s)
    return choice


@given(
    st.lists(seconds, min_size=RECENT, max_size=RECENT),
    st.floats(0.01, 100),
    st.floats(0.01, 10),
)
def test_it_begins_again_where_shortened_waits_are_a_multiple_of_the_cost(
    waits_s: list[float], cost_s: float, share: float
) -> None:
    choice = ceased(share, cost_s)
    for wait_s in waits_s:
        assert not choice.worth
        choice.waited(wait_s)
    expected = sum(waits_s) / RECENT / (1 + share)
    if abs(expected - MARGIN * cost_s) > 1e-6 * (expected + cost_s):
        assert choice.worth == (expected > MARGIN * cost_s)
        assert choice.changes == 1 + choice.worth


def lived(wait_s: float, noise: float, seed: int) -> tuple[int, int]:
    """Changes, and steps that were lent, of 1,000 steps whose waits have this mean, and lengths by
    a lognormal; a loan, which half of the engines have, costs a second."""
    draw, choice, lent = random.Random(seed), LendingChoice(1.0), 0
    for _ in range(1000):
        wait = wait_s * draw.lognormvariate(-0.5 * noise * noise, noise)
        if choice.worth:
            lent += 1
            before = min(0.5, wait / 2)
            choice.lent(Loan(before, wait / 2 - before, 0.5))
        else:
            choice.waited(wait)
    return choice.changes, lent


@pytest.mark.parametrize("seed", range(3))
def test_in_1000_steps_nothing_flaps(seed: int) -> None:
    """Waits that are far from what pays change nothing, however they scatter; those that are near
    to it at most 24 times, with lengths as scattered as those of models that reason."""
    assert lived(0.5, 1.0, seed) == (1, RECENT)
    assert lived(20.0, 1.0, seed) == (0, 1000)
    for noise, most in ((0.0, 1), (0.3, 2), (1.0, 24)):
        for wait_s in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0):
            assert lived(wait_s, noise, seed)[0] <= most
