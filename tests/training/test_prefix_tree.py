"""A prefix tree is the trie of its sequences, whatever they are; its tables are their attention."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import drawn

from asyncrl.training.trees import attention_tables as tables_module
from asyncrl.training.trees.attention_tables import (
    AttentionTable,
    attention_tables,
    cuts,
    table_cost,
)
from asyncrl.training.trees.divided_places import divided_places
from asyncrl.training.trees.prefix_tree import Ints, PrefixTree, prefix_tree

ids = st.lists(st.integers(0, 2), min_size=1, max_size=9)
several = st.lists(ids, min_size=1, max_size=14)
"""Few different ids: sequences that are equal, that begin one another, and branches everywhere."""


def tree_of(sequences: list[list[int]], shared: bool = True) -> tuple[PrefixTree, list[int]]:
    tree, of = prefix_tree([np.array(s, np.int32) for s in sequences], shared=shared)
    return tree, of.tolist()


def naive_places(sequences: list[list[int]]) -> set[tuple[int, ...]]:
    """A trie's nodes, each as the path to it."""
    return {tuple(s[:end]) for s in sequences for end in range(1, len(s) + 1)}


def node(tree: PrefixTree, place: int) -> tuple[int, ...]:
    """The path to a place, by its parents."""
    parents, path = tree.parents(), []
    while place >= 0:
        path.append(int(tree.ids[place]))
        place = int(parents[place])
    return tuple(reversed(path))


@given(several)
def test_places_are_the_nodes_of_the_trie(sequences: list[list[int]]) -> None:
    tree, of = tree_of(sequences)
    nodes = [node(tree, place) for place in range(len(tree.ids))]
    assert len(set(nodes)) == len(nodes) and set(nodes) == naive_places(sequences)
    assert tree.positions().tolist() == [len(path) - 1 for path in nodes]
    paths = tree.paths()
    assert [tree.ids[paths[s]].tolist() for s in of] == sequences
    assert sorted(set(of)) == list(range(len(tree.length)))
    assert len(tree.length) == len({tuple(s) for s in sequences})
    for place, end in enumerate(tree.ends().tolist()):
        below = [q for q, path in enumerate(nodes) if path[: len(nodes[place])] == nodes[place]]
        assert below == list(range(place, end))
    assert all(parent < place for place, parent in enumerate(tree.parents().tolist()))


@given(several)
def test_nothing_is_shared_where_nothing_is_to_be(sequences: list[list[int]]) -> None:
    tree, of = tree_of(sequences, shared=False)
    assert len(tree.ids) == sum(map(len, sequences)) and not tree.shared.any()
    assert [tree.ids[tree.paths()[s]].tolist() for s in of] == sequences
    assert len(set(of)) == len(sequences) and sorted(tree.length) == tree.length.tolist()


@given(several, st.data())
def test_a_part_is_the_tree_of_those_alone(sequences: list[list[int]], data: st.DataObject) -> None:
    tree, _ = tree_of(sequences)
    every = range(len(tree.length))
    chosen = sorted(data.draw(st.sets(st.sampled_from(every), min_size=1)))
    part = tree.part(np.array(chosen))
    paths, kept = tree.paths(), part.paths()
    own = [tree.ids[paths[s]].tolist() for s in chosen]
    assert [part.ids[path].tolist() for path in kept] == own
    nodes = {node(part, place) for place in range(len(part.ids))}
    assert len(nodes) == len(part.ids) and nodes == naive_places(own)


@given(several)
def test_trees_come_by_their_shortest_sequence(sequences: list[list[int]]) -> None:
    tree, _ = tree_of(sequences)
    roots = np.flatnonzero(tree.shared == 0)
    shortest = [int(part.min()) for part in np.split(tree.length, roots[1:])]
    assert shortest == sorted(shortest) and len(roots) == len({s[0] for s in sequences})


@given(several, st.booleans(), st.integers(1, 300), st.integers(1, 4))
def test_each_place_is_a_query_once_after_its_path(
    sequences: list[list[int]], shared: bool, price: int, ranks: int
) -> None:
    """Of one rank, and of several that have some of the places each."""
    tree, _ = tree_of(sequences, shared)
    asked = list[int]()
    for rank in range(ranks):
        own = np.arange(len(tree.ids))
        if ranks > 1:
            own = divided_places(len(tree.ids), rank, ranks).own.numpy()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables_module, "TABLE_TOKENS", price)
            tables, home = attention_tables(tree, own if ranks > 1 else None)
        assert len(home) == len(own)
        asked += queried(tree, tables, home, own)
        if ranks == 1 and not shared:
            rows = np.concatenate([table.sequences.numpy() for table in tables])
            assert sorted(rows) == list(range(len(tree.length)))
    assert sorted(asked) == list(range(len(tree.ids)))


def queried(tree: PrefixTree, tables: Sequence[AttentionTable], home: Ints, own: Ints) -> list[int]:
    """The tree's places among a rank's own, each of which is seen to be a query after its path."""
    assert tables
    seen = {}
    index = 0
    for table in tables:
        mask = table.mask()
        if mask is None:
            causal = torch.ones(table.queries.shape[1], table.keys.shape[1]).tril() > 0
            mask = torch.where(causal, 0.0, -torch.inf).expand(len(table.queries), 1, -1, -1)
        assert mask.shape == (len(table.queries), 1, table.queries.shape[1], table.keys.shape[1])
        for row, queries in enumerate(table.queries.tolist()):
            for column, query in enumerate(queries):
                seen[index] = (query, table.keys[row][mask[row, 0, column] == 0].tolist())
                index += 1
    ends, inside = tree.ends(), [place for place in own.tolist() if place < len(tree.ids)]
    for number, place in enumerate(inside):
        query, keys = seen[int(home[number])]
        assert own[query] == place
        assert keys == [k for k in range(place + 1) if place < ends[k]]
    return inside


@settings(max_examples=drawn(50))
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=7),
    st.integers(1, 60),
)
def test_cuts_are_the_cheapest(sizes: list[tuple[int, int]], price: int) -> None:
    queries, keys = (np.array(of) for of in zip(*((q, q + k) for q, k in sizes), strict=True))
    count = len(sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables_module, "TABLE_TOKENS", price)
        found, cost = cuts(queries, keys)

        def priced(ends: list[int]) -> float:
            starts = [0, *ends[:-1]]
            return sum(
                price
                + (end - start)
                * max(keys[start:end])
                * (1 + max(queries[start:end]) / tables_module.ROW_QUERIES)
                for start, end in zip(starts, ends, strict=True)
            )

        every = [
            [*inner, count]
            for size in range(count)
            for inner in combinations(range(1, count), size)
        ]
        assert found[-1] == count and found == sorted(set(found))
        # equal neighbours stay together, which costs nothing
        assert priced(found) == pytest.approx(cost) == pytest.approx(min(map(priced, every)))
        assert table_cost(np.array([2]), np.array([3]), np.array([5])) > price
