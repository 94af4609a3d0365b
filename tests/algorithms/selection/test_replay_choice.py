"""Trained groups that are trained again: young enough and with a signal, those that teach most
first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algorithms.selection.replay import (
    Candidate,
    MostVariance,
    ReplayRule,
    replayed,
    useful,
)

RULE = MostVariance()
values = st.sampled_from([0.0, 0.1, 0.5, 1.0])
candidates = st.lists(
    st.builds(
        Candidate,
        st.integers(0, 10**6),
        st.integers(0, 12),
        st.lists(values, max_size=5).map(lambda rewards: [tuple(rewards)]),
    ),
    max_size=20,
    unique_by=lambda candidate: candidate.group,
)

HALF = (1.0, 0.0, 1.0, 0.0)
QUARTER = (1.0, 0.0, 0.0, 0.0)


def test_most_signal_first_then_the_youngest() -> None:
    population = [
        Candidate(1, 9, [QUARTER]),
        Candidate(2, 7, [HALF]),
        Candidate(3, 9, [HALF]),
        Candidate(4, 9, [(1.0, 1.0)]),  # no signal
        Candidate(5, 5, [HALF]),  # too old
        Candidate(7, 9, [HALF]),
    ]
    assert replayed(RULE, population, step=10, max_lag=4, count=9) == [7, 3, 2, 1]
    assert replayed(RULE, population, step=10, max_lag=4, count=2) == [7, 3]
    assert replayed(RULE, population, step=10, max_lag=5, count=9) == [7, 3, 2, 5, 1]
    assert replayed(RULE, population, step=10, max_lag=0, count=9) == []
    assert replayed(RULE, population, step=10, max_lag=4, count=0) == []
    assert replayed(RULE, [], step=10, max_lag=4, count=9) == []


def test_uneven_groups_and_huge_rewards_are_compared_by_their_variance() -> None:
    population = [
        Candidate(1, 0, [(1.0, 0.0)]),
        Candidate(2, 0, [(3.0, 0.0, 0.0)]),
        Candidate(3, 0, [(1e200, 0.0)]),
        Candidate(4, 0, [()]),
        Candidate(5, 0, []),
    ]
    assert replayed(RULE, population, 0, 0, 9) == [3, 2, 1]


def test_by_turn_the_turn_counts_at_which_they_vary_most() -> None:
    same = (1.0, 1.0)
    population = [
        Candidate(1, 0, [same, (1.0, 0.0)]),
        Candidate(2, 0, [same, same]),
        Candidate(3, 0, [same, (1.0, 0.5), (2.0, 0.0)]),
    ]
    assert replayed(RULE, population, 0, 0, 9) == [3, 1]


@given(
    candidates,
    st.integers(0, 15),
    st.integers(0, 6),
    st.integers(0, 8),
    st.randoms(use_true_random=False),
)
def test_it_is_a_function_of_the_set_and_keeps_every_bound(
    population: list[Candidate], step: int, max_lag: int, count: int, random: object
) -> None:
    got = replayed(RULE, population, step, max_lag, count)
    by_id = {candidate.group: candidate for candidate in population}
    possible = [c for c in population if step - c.oldest <= max_lag and len(set(c.compared[0])) > 1]
    assert set(got) <= {c.group for c in possible} and len(set(got)) == len(got) == min(
        count, len(possible)
    )
    signals = [float(np.var(by_id[group].compared[0])) for group in got]
    assert all(a >= b - 1e-12 for a, b in pairwise(signals))
    left = [float(np.var(c.compared[0])) for c in possible if c.group not in got]
    assert not left or not got or max(left) <= signals[-1] + 1e-12
    shuffled = list(population)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert replayed(RULE, shuffled, step, max_lag, count) == got


@given(candidates, st.integers(0, 15), st.integers(0, 6))
def test_what_is_of_no_use_now_never_will_be(
    population: list[Candidate], step: int, max_lag: int
) -> None:
    for candidate in population:
        if not useful(candidate, step, max_lag):
            assert not useful(candidate, step + 1, max_lag)
            assert (
                replayed(RULE, [candidate], step, max_lag, 1)
                == replayed(RULE, [candidate], step + 3, max_lag, 1)
                == []
            )


class Greedy:
    """Names one that is no candidate."""

    def choose(self, candidates: Sequence[Candidate], count: int) -> list[int]:
        return [candidate.group + 1 for candidate in candidates[:count]]


class Double:
    """Names one twice."""

    def choose(self, candidates: Sequence[Candidate], count: int) -> list[int]:
        return [candidates[0].group] * 2


class All:
    """Names all, however many are asked for."""

    def choose(self, candidates: Sequence[Candidate], count: int) -> list[int]:
        return [candidate.group for candidate in candidates]


@pytest.mark.parametrize("rule", [Greedy(), Double(), All()], ids=lambda rule: type(rule).__name__)
def test_a_rule_that_chooses_what_it_may_not_is_refused(rule: ReplayRule) -> None:
    population = [Candidate(1, 9, [HALF]), Candidate(5, 9, [HALF]), Candidate(7, 1, [HALF])]
    with pytest.raises(ValueError, match=r"choose at most 1 of \[1, 5\], each once"):
        replayed(rule, population, 10, 4, 1)
