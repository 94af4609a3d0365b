"""Rollouts of a prompt: more where it is harder, within the bounds, at a cost that is
known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algorithms.selection.group_size import FOUND, ByDifficulty, Fixed
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.config.selection_names import SIZINGS

bounds = st.tuples(st.integers(1, 16), st.integers(0, 48)).map(lambda pair: (pair[0], sum(pair)))


def known(*groups: tuple[int, int]) -> History:
    """A history of item 0: (rollouts that solved it, rollouts) of each group."""
    history = History()
    for solved, size in groups:
        history.admit(0, 1)
        history.record(0, [1.0] * solved + [0.0] * (size - solved), size)
    return history


def test_run_toml_has_these_names() -> None:
    assert set(SIZINGS) == {"fixed", "difficulty"}


def test_more_for_harder_prompts() -> None:
    sizes = [ByDifficulty(8, 24).size(known((solved, 16)), 0) for solved in range(17)]
    assert sizes == [24, 20, 13, 10, 8] + [8] * 12
    assert ByDifficulty(8, 16).size(known((0, 8), (0, 8)), 0) == 16
    assert ByDifficulty(8, 16).size(known((0, 8), (0, 8), (4, 8)), 0) == 8, (
        "it is not hard any more"
    )


def test_what_was_never_seen_gets_the_least() -> None:
    for least in range(4, 20):
        assert ByDifficulty(least, 40).size(History(), 0) == least
    assert ByDifficulty(2, 40).size(History(), 0) == 4, (
        "of two rollouts none solves it with a chance of a quarter"
    )


@given(
    bounds,
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 8)).map(lambda pair: (min(pair), max(pair))),
        max_size=8,
    ),
)
def test_it_is_the_smallest_size_that_finds_a_solution(
    size: tuple[int, int], groups: list[tuple[int, int]]
) -> None:
    least, most = size
    history = known(*groups)
    got = ByDifficulty(least, most).size(history, 0)
    assert least <= got <= most
    a, b = history.posterior(0)
    missed = b / (a + b)
    assert got == most or 1 - missed**got >= FOUND - 1e-9
    assert got == least or 1 - missed ** (got - 1) < FOUND + 1e-9
    assert Fixed(least, most).size(history, 0) == least


@given(bounds, st.integers(0, 15))
def test_one_more_solution_never_asks_for_more(size: tuple[int, int], solved: int) -> None:
    sizing = ByDifficulty(*size)
    assert sizing.size(known((solved + 1, 16)), 0) <= sizing.size(known((solved, 16)), 0)


def test_the_cost_of_prompts_of_every_kind_and_of_hopeless_ones() -> None:
    sizing = ByDifficulty(8, 16)
    every = [sizing.size(known((solved, 64)), 0) for solved in range(65)]
    assert sum(every) / len(every) == pytest.approx(8 * 1.18, rel=0.005)
    assert sizing.size(known((0, 64)), 0) / 8 == 2
