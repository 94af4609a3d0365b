"""Rollouts of a prompt: more where it is harder, within the bounds, at a cost that is
known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algorithms.selection.dart import FewerWhereSolved
from asyncrl.algorithms.selection.gdro import SLACK, ExactMean
from asyncrl.algorithms.selection.group_size import FOUND, ByDifficulty, Fixed
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.config.selection_names import SIZINGS, grows

bounds = st.tuples(st.integers(1, 16), st.integers(0, 48)).map(lambda pair: (pair[0], sum(pair)))


def known(*groups: tuple[int, int]) -> History:
    """A history of item 0: (rollouts that solved it, rollouts) of each group."""
    history = History()
    for solved, size in groups:
        history.admit(0, 1)
        history.record(0, [1.0] * solved + [0.0] * (size - solved), size)
    return history


def test_run_toml_has_these_names() -> None:
    growing = {"dars", "dars_hard", "v05", "xrpo"}
    assert set(SIZINGS) == {"fixed", "difficulty", "gdro", "dart"} | growing
    assert {name for name in SIZINGS if grows(SIZINGS.find(name)(2, 4))} == growing


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


def test_gdro_gives_every_prompt_its_share_and_all_of_them_the_exact_mean() -> None:
    """10,000 groups of 200 prompts, of which a quarter is never solved and a quarter always."""
    draw, history, sizing = random.Random(0), History(), ExactMean(2, 14)
    rates = [(0.0, 1.0, 0.5, draw.random())[prompt % 4] for prompt in range(200)]
    late: dict[float, list[int]] = {0.0: [], 1.0: [], 0.5: []}
    for place in range(10_000):
        prompt = place % 200
        size = sizing.size(history, prompt)
        assert 2 <= size <= 14 and size == ExactMean(2, 14).size(history, prompt)
        history.admit(prompt, place + 1)
        history.sized(groups=1, rollouts=size)
        assert abs(history.rollouts - 8 * history.groups) <= SLACK * 12
        history.record(prompt, [float(draw.random() < rates[prompt]) for _ in range(size)], size)
        if place > 2000 and rates[prompt] in late:
            late[rates[prompt]].append(size)
    assert history.rollouts / history.groups == pytest.approx(8, abs=0.005)
    hopeless, solved, even = (sum(sizes) / len(sizes) for sizes in late.values())
    assert even > 1.5 * max(hopeless, solved)


@given(bounds, st.integers(-3, 3), st.integers(1, 40), st.floats(0, 1))
def test_gdro_stays_within_its_bounds_wherever_the_sum_is(
    size: tuple[int, int], off: int, groups: int, solved: float
) -> None:
    least, most = size
    history = known((round(16 * solved), 16))
    history.sized(groups, round((least + most) / 2 * groups) + off * (most - least))
    assert least <= ExactMean(least, most).size(history, 0) <= most


@given(bounds)
def test_dart_gives_fewer_the_more_solve_it_and_never_fewer_than_the_least(
    size: tuple[int, int],
) -> None:
    least, most = size
    sizes = [FewerWhereSolved(least, most).size(known((solved, 64)), 0) for solved in range(65)]
    assert sizes == sorted(sizes, reverse=True) and set(sizes[:38]) == {most}
    assert sizes[-1] == most - round((65 / 66 - 0.6) / 0.4 * (most - least))
