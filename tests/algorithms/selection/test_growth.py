"""Rules by which groups grow: the papers' formulas, tried against tables and by counting."""

from __future__ import annotations

from itertools import pairwise
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algorithms.selection.dars import Dars, DarsHard, TwoStages
from asyncrl.algorithms.selection.growth import GrowingGroup, GrowingSizing
from asyncrl.algorithms.selection.judged_group import JudgedMember
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.algorithms.selection.v05_growth import V05Growth
from asyncrl.algorithms.selection.xrpo import Xrpo, student
from asyncrl.messages import PromptFacts

RIGHT, WRONG = JudgedMember(1.0, right=True), JudgedMember(0.0)


def group(solved: int, size: int, solve_rate: float = 0.5, missing: int = 0) -> GrowingGroup:
    """A group of `size`, of which `missing` have no reward."""
    facts = PromptFacts(posterior=(100 * solve_rate, 100 * (1 - solve_rate)))
    return GrowingGroup(size, [RIGHT] * solved + [WRONG] * (size - solved - missing), facts)


def test_dars_adds_what_its_formulas_say() -> None:
    """Delta N of both treatments, for N = 8, by hand."""
    assert [Dars(8, 99).grow(group(k, 8)) - 8 for k in range(9)] == [27, 11, 3, 1, 0, 0, 0, 0, 0]
    hard = [DarsHard(8, 99).grow(group(k, 8)) - 8 for k in range(9)]
    assert hard == [56, 24, 8, 3, 0, 0, 0, 0, 0]
    assert Dars(8, 16).grow(group(0, 8)) == 16 and Dars(8, 99).grow(group(0, 35)) == 35


@pytest.mark.parametrize(
    ("rule", "p", "mean", "weight"),
    [
        (Dars(8, 40), 0.05, 29.0, 2.64),
        (DarsHard(8, 72), 0.05, 51.8, 4.87),
        (Dars(8, 40), 0.5, 9.0, 4.05),
    ],
)
def test_dars_makes_hard_prompts_count_more_at_its_price(
    rule: TwoStages, p: float, mean: float, weight: float
) -> None:
    """The expected size, and the expected sum of the advantages' sizes over the group (2 a (1 - a)
    n), exactly; a fixed group of 8 has a sum of 0.66 at p = 0.05."""
    sizes = weights = 0.0
    for k in range(9):
        first = comb(8, k) * p**k * (1 - p) ** (8 - k)
        size = rule.grow(group(k, 8))
        sizes += first * size
        for more in range(size - 7):
            chance = first * comb(size - 8, more) * p**more * (1 - p) ** (size - 8 - more)
            a = (k + more) / size
            weights += chance * 2 * a * (1 - a) * size
    assert (sizes, weights) == (pytest.approx(mean, rel=0.05), pytest.approx(weight, rel=0.05))


def test_v05_ends_at_sixteen_at_the_latest_and_soon_where_nothing_surprises() -> None:
    def ends(solved_of: float, solve_rate: float) -> int:
        size = 4
        while (
            now := V05Growth(4, 99).grow(group(round(solved_of * size), size, solve_rate))
        ) > size:
            assert now == size + 1
            size = now
        return size

    assert ends(1.0, 0.01) == 16 and ends(0.0, 0.99) == 16
    assert ends(0.5, 0.5) == ends(1.0, 0.95) == 4
    assert 4 < ends(1.0, 0.6) < 16
    assert V05Growth(4, 16).size(History(), 0) == 4


def test_students_quantiles_are_those_of_the_tables() -> None:
    table = {1: 12.7062, 2: 4.3027, 3: 3.1824, 5: 2.5706, 10: 2.2281, 20: 2.0860, 60: 2.0003}
    assert {f: round(student(f), 4) for f in table} == table


def test_xrpo_adds_stages_where_rewards_differ() -> None:
    assert [Xrpo(8, 64).grow(group(k, 8)) for k in range(9)] == [8] + [16] * 7 + [8]
    assert [Xrpo(8, 64).grow(group(8, size)) for size in (16, 24)] == [16, 24]
    assert Xrpo(8, 12).grow(group(4, 8)) == 12, "no further than the most"
    assert Xrpo(8, 64).grow(group(1, 8, missing=7)) == 16, "one reward tells no deviation"


@given(
    st.sampled_from([Dars, DarsHard, V05Growth, Xrpo]),
    st.integers(1, 12),
    st.integers(0, 20),
    st.integers(0, 12),
    st.floats(0.01, 0.99),
    st.integers(0, 3),
)
def test_no_rule_shrinks_a_group_or_lets_it_grow_too_large(
    rule: type[GrowingSizing], least: int, more: int, solved: int, rate: float, missing: int
) -> None:
    """From `least` on, asked again and again, until it says that the group has all."""
    sizing, size = rule(least, least + more), least
    sizes = [size]
    while size < least + more:
        missing = min(missing, size - 1)
        size = sizing.grow(group(min(solved, size - missing), size, rate, missing))
        sizes.append(size)
        if sizes[-1] == sizes[-2]:
            break
    assert all(a <= b for a, b in pairwise(sizes)) and sizes[-1] <= least + more
