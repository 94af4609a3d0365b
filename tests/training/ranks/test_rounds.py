"""Rounds: each piece once, in the least time that rounds can take."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.training.ranks.rounds import rounds

COSTS = st.lists(st.floats(0.0, 100.0), max_size=6)


def seconds(costs: list[float], found: list[list[int | None]]) -> float:
    return sum(max(0.0 if at is None else costs[at] for at in each) for each in found)


@given(COSTS, st.integers(1, 4))
def test_each_piece_is_done_once_and_all_ranks_have_as_many_rounds(
    costs: list[float], ranks: int
) -> None:
    found = rounds(costs, ranks)
    assert all(len(each) == ranks for each in found)
    pieces = [at for each in found for at in each if at is not None]
    assert sorted(pieces) == list(range(len(costs)))
    assert len(found) == -(-len(costs) // ranks)


@given(COSTS, st.integers(1, 3))
def test_no_other_division_is_faster(costs: list[float], ranks: int) -> None:
    best = min(
        sum(max(order[at : at + ranks]) for at in range(0, len(order), ranks))
        for order in permutations(costs)
    )
    assert seconds(costs, rounds(costs, ranks)) <= best + 1e-9
