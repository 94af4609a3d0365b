"""Micro-batches: everything once, in order, within the budget, and no more of them than next-fit
needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.experience.micro_batches import micro_batches

Item = tuple[int, int, int]
"""(group, place, tokens)"""


def numbered(sizes: list[list[int]]) -> list[list[Item]]:
    return [[(g, i, size) for i, size in enumerate(group)] for g, group in enumerate(sizes)]


def pack(sizes: list[list[int]], budget: int) -> list[list[Item]]:
    return micro_batches(numbered(sizes), lambda item: item[2], budget)


def test_whole_groups_up_to_the_budget() -> None:
    assert [
        [prompt_index[2] for prompt_index in batch]
        for batch in pack([[3, 3], [2, 2], [4], [9, 1]], 10)
    ] == [[3, 3, 2, 2], [4], [9, 1]]


def test_a_group_over_the_budget_is_split_by_rollout_and_a_rollout_over_it_is_alone() -> None:
    assert [
        [prompt_index[2] for prompt_index in batch] for batch in pack([[6, 6, 4], [11], [1]], 10)
    ] == [[6], [6, 4], [11], [1]]


def test_nothing_packs_to_nothing() -> None:
    assert pack([], 10) == [] and pack([[]], 10) == []


def test_a_budget_is_positive() -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        pack([[1]], 0)


@given(st.lists(st.lists(st.integers(1, 15), max_size=5), max_size=8), st.integers(1, 20))
def test_everything_once_in_order_within_the_budget(sizes: list[list[int]], budget: int) -> None:
    batches = pack(sizes, budget)
    assert [item for batch in batches for item in batch] == [
        item for group in numbered(sizes) for item in group
    ]
    weights = [sum(prompt_index[2] for prompt_index in batch) for batch in batches]
    assert all(batch for batch in batches)
    assert all(
        weight <= budget or len(batch) == 1 for weight, batch in zip(weights, batches, strict=True)
    )
    groups_of = [{prompt_index[0] for prompt_index in batch} for batch in batches]
    for group, members in enumerate(sizes):
        if sum(members) <= budget:
            assert sum(group in groups for groups in groups_of) <= 1, (
                "a group within the budget is whole"
            )
    for i in range(len(batches) - 1):
        following = batches[i + 1][0][0]
        piece = sizes[following]
        need = sum(piece) if sum(piece) <= budget else batches[i + 1][0][2]
        assert weights[i] + need > budget, "a new micro-batch is opened only for what does not fit"


@given(
    st.lists(st.lists(st.integers(1, 15), min_size=1, max_size=5), min_size=1, max_size=8),
    st.integers(1, 20),
)
def test_what_is_packed_does_not_depend_on_what_finishes_later(
    sizes: list[list[int]], budget: int
) -> None:
    assert (
        pack(sizes[:-1], budget)[:-1]
        == pack(sizes, budget)[: max(0, len(pack(sizes[:-1], budget)) - 1)]
    )
