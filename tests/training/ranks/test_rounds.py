"""Rounds: each piece once, in the least time that rounds can take; and packed batches that take
ranks equally long."""

from __future__ import annotations

import random
from itertools import accumulate, permutations

from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import drawn

from asyncrl.training.even_packs import even_packs
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


@settings(max_examples=drawn(30))
@given(st.integers(0, 10**6), st.integers(2, 8))
def test_packed_batches_of_heavy_tails_take_ranks_equally_long(seed: int, ranks: int) -> None:
    """Trees of eight samples whose lengths differ by a factor of twenty: each sample is there once,
    the slowest rank of each round takes 1.1 of the
    mean in all, and no batch costs more than one may."""
    draw = random.Random(seed)
    trees = draw.randint(6 * ranks, 10 * ranks)
    prompts = [draw.uniform(30, 200) for _ in range(trees)]
    answers = [[min(2000, 60 * draw.paretovariate(1.2)) for _ in range(8)] for _ in prompts]
    own = [
        each + (0 if place else prompt)
        for prompt, of_tree in zip(prompts, answers, strict=True)
        for place, each in enumerate(of_tree)
    ]
    alone = [p + each for p, of_tree in zip(prompts, answers, strict=True) for each in of_tree]
    roots = [0, *accumulate([8] * (trees - 1))]
    most = max(3072.0, 2 * max(alone))
    found = even_packs(own, alone, roots, ranks, most)
    assert sorted(at for each in found for at in each.tolist()) == list(range(8 * trees))
    costs = [
        sum(own[at] if at - 1 in members and at not in roots else alone[at] for at in members)
        for members in map(set, (each.tolist() for each in found))
    ]
    assert max(costs) <= most + 1e-6
    assert seconds(costs, rounds(costs, ranks)) <= 1.1 * sum(own) / ranks
