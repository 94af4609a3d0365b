"""Attention of a prefix tree as tables of rows. Invariant: each place is a query once, after its
own path and nothing else.

A row is a segment, or several that follow each other in a tree: its queries are their places, its
keys the path to the first of them, and these places themselves. So short segments share the copy of
the path that they have in common, for a few scores that are masked. Rows of about one size form a
table, right-padded. A segment that shares nothing is its own path: then causal attention never sees
the padding, and no mask is built. In others a query sees a key that is in its path: a place q has k
in its path if k <= q < ends[k].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.training.trees.prefix_tree import Ints, PrefixTree

TABLE_TOKENS = 128
"""Cost of one more table of rows, in tokens of padding, measured on small models."""
ROW_QUERIES = 128
"""The number of queries at which a key's attention costs as much as storing it in the row."""
JOINED = 64
"""Most segments of a row."""


class AttentionTable(NamedTuple):
    """Rows of about one size. Of each row: its sequence of the tree, int64 [rows]; its `queries`,
    int64 [rows, queries], and its `keys`, int64 [rows, keys], places of the tree, right-padded with
    the row's first; and the `ends` of its keys, int64 [rows, keys], 0 of padding; None where
    attention is causal. `places` are the queries' own: the `queries` of a rank that has some of
    the places are their indexes among these."""

    sequences: Tensor
    queries: Tensor
    keys: Tensor
    places: Tensor
    ends: Tensor | None

    def to(self, device: torch.device) -> AttentionTable:
        """The same on a device."""
        moved = {id(each): each.to(device) for each in self if each is not None}
        return AttentionTable._make(each if each is None else moved[id(each)] for each in self)

    def mask(self) -> Tensor | None:
        """Bias of the scores of each query and key: 0 or -inf, float32 [rows, 1, queries, keys];
        None for causal attention."""
        if self.ends is None:
            return None
        keys, ends, query = self.keys[:, None], self.ends[:, None], self.places[:, :, None]
        hidden = ((keys > query) | (query >= ends))[:, None]
        return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)


class _Rows(NamedTuple):
    """Rows of a tree: of each, int64 [rows], its sequence, its `first` place, its `own` queries,
    and how many places of its path are `shared` and come before them."""

    sequence: Ints
    first: Ints
    own: Ints
    shared: Ints

    @property
    def length(self) -> Ints:
        length: Ints = self.shared + self.own
        return length

    def inside(self, begin: int, end: int) -> _Rows:
        """The parts of the rows with queries in [begin, end)."""
        skipped = np.maximum(0, begin - self.first)
        own = np.minimum(self.own, end - self.first) - skipped
        cut = _Rows(self.sequence, self.first + skipped, own, self.shared + skipped)
        return _Rows(*(of[own > 0] for of in cut))


def attention_tables(
    tree: PrefixTree, own: Ints | None = None
) -> tuple[tuple[AttentionTable, ...], Ints]:
    """The tables of a tree, and the index of each place among all their queries, flattened and
    joined; int64 [places]. With `own` places (ascending, int64), the tables of these as queries,
    and the indexes of these: 0 for those that are in no tree. There is always a row.

    >>> tree = PrefixTree(np.array([7, 8, 1, 2, 3]), np.array([4, 3]), np.array([0, 2]))
    >>> tables, home = attention_tables(tree)
    >>> [(table.queries.tolist(), table.keys.tolist()) for table in tables]
    [([[0, 1, 2, 3]], [[0, 1, 2, 3]]), ([[4]], [[0, 1, 4]])]
    >>> home.tolist()
    [0, 1, 2, 3, 4]
    >>> tables, home = attention_tables(tree, own=np.array([2, 4]))
    >>> [(table.queries.tolist(), table.keys.tolist()) for table in tables]
    [([[0], [1]], [[0, 1, 2], [0, 1, 4]])]
    """
    return _tables(tree, own, _joined)


def path_tables(tree: PrefixTree) -> tuple[AttentionTable, ...]:
    """The tables of a tree whose rows are one segment each, so that the keys of a row are the whole
    path of one sequence; for passes that are given such paths.

    >>> tree = PrefixTree(np.array([7, 8, 1, 2]), np.array([3, 4]), np.array([0, 3]))
    >>> [table.keys.tolist() for table in path_tables(tree)]
    [[[0, 1, 2]], [[0, 1, 2, 3]]]
    """
    return _tables(tree, None, lambda rows: rows)[0]


def _tables(
    tree: PrefixTree, own: Ints | None, joined: Callable[[_Rows], _Rows]
) -> tuple[tuple[AttentionTable, ...], Ints]:
    """The tables of a tree as in `attention_tables`; rows that share keys are `joined`."""
    sequences = np.arange(len(tree.length))
    every = _Rows(sequences, tree.first, tree.length - tree.shared, tree.shared)
    if own is not None:
        every = _rows_of(every, own)
    paths, ends = tree.paths(), tree.ends()
    count = len(tree.ids) if own is None else len(own)
    tables, home, before = [], np.zeros(count, dtype=np.int64), 0
    for whole in (True, False):
        chosen = _Rows(*(of[(every.shared == 0) == whole] for of in every))
        for rows in _cut(chosen if whole else joined(chosen)):
            column = np.arange(rows.own.max())
            inside = column < rows.own[:, None]
            places = np.where(inside, rows.first[:, None] + column, rows.first[:, None])
            queries = places if own is None else np.searchsorted(own, places)
            home[queries[inside]] = before + np.flatnonzero(inside)
            before += queries.size
            keys, last = (places, None) if whole else _keys(rows, paths, ends)
            tables.append(_table(rows.sequence, queries, keys, places, last))
    return tuple(tables), home


def _keys(rows: _Rows, paths: Sequence[Ints], ends: Ints) -> tuple[Ints, Ints]:
    """The keys of rows, and their ends, int64 [rows, keys]: of each the path to its first place,
    and its own places."""
    keys = np.repeat(rows.first[:, None], rows.length.max(), axis=1)
    last = np.zeros_like(keys)
    for row, until, sequence, first, own, shared in zip(
        keys, last, *(of.tolist() for of in rows), strict=True
    ):
        row[:shared] = paths[sequence][:shared]
        row[shared : shared + own] = np.arange(first, first + own)
        until[: shared + own] = ends[row[: shared + own]]
    return keys, last


def _table(
    sequences: Ints, queries: Ints, keys: Ints, places: Ints, ends: Ints | None
) -> AttentionTable:
    """A table of arrays, of which those that are the same one stay so."""
    arrays = sequences, queries, keys, places, ends
    tensors = {id(of): torch.from_numpy(of) for of in arrays if of is not None}
    return AttentionTable._make(None if of is None else tensors[id(of)] for of in arrays)


def _joined(rows: _Rows) -> _Rows:
    """Join rows whose places follow each other, so that all together cost least (dynamic
    programming over the end of the last one, as in `cuts`)."""
    if not len(rows.first):
        return rows
    parted = np.flatnonzero(rows.first[1:] != rows.first[:-1] + rows.own[:-1]) + 1
    found = list[int]()
    for begin, end in pairwise([0, *parted.tolist(), len(rows.first)]):
        until = np.append(0, np.cumsum(rows.own[begin:end]))
        best, before = np.zeros(len(until)), np.zeros(len(until), dtype=np.int64)
        for last in range(1, len(until)):
            since = max(0, last - JOINED)
            queries = until[last] - until[since:last]
            keys = rows.shared[begin + since : begin + last] + queries
            cost = best[since:last] + _row_cost(queries, keys)
            before[last] = since + np.argmin(cost)
            best[last] = cost.min()
        starts, last = list[int](), end - begin
        while last:
            last = int(before[last])
            starts.append(begin + last)
        found += reversed(starts)
    at = np.array(found)
    own = np.add.reduceat(rows.own, at)
    return _Rows(rows.sequence[at], rows.first[at], own, rows.shared[at])


def _row_cost(queries: Ints, keys: Ints) -> NDArray[np.float64]:
    """Cost of a row of these sizes, in tokens."""
    cost: NDArray[np.float64] = keys * (1 + queries / ROW_QUERIES)
    return cost


def _rows_of(every: _Rows, own: Ints) -> _Rows:
    """The rows of these places (ascending). Where none is in a row, that of one place, which
    nobody reads: attention must be of something."""
    begins = np.flatnonzero(np.diff(own, prepend=own[0] - 2) != 1)
    ends = np.append(begins[1:], len(own)) - 1
    pieces = [
        every.inside(int(own[begin]), int(own[end]) + 1)
        for begin, end in zip(begins, ends, strict=True)
    ]
    found = _Rows(*(np.concatenate(of) for of in zip(*pieces, strict=True)))
    if len(found.sequence):
        return found
    nothing = np.zeros(1, dtype=np.int64)
    return _Rows(nothing, own[:1], nothing + 1, nothing)


def _cut(rows: _Rows) -> list[_Rows]:
    """Divide rows into tables: by length or by their own tokens, whichever costs less."""
    if not len(rows.first):
        return []
    divided = []
    for keys in ((rows.own, rows.length), (rows.length, rows.own)):
        ordered = np.lexsort(keys)
        divided.append((ordered, *cuts(rows.own[ordered], rows.length[ordered])))
    ordered, ends, _ = min(divided, key=lambda of: of[2])
    return [_Rows(*(of[chosen] for of in rows)) for chosen in np.split(ordered, ends[:-1])]


def cuts(queries: Ints, keys: Ints) -> tuple[list[int], float]:
    """Cut rows of these sizes, in this order, into tables, so that their cost is least (dynamic
    programming over the end of the last table; equal neighbours stay together). Returns the end of
    each table, and the cost of all.

    >>> sizes = np.array([10, 10, 11, 400])
    >>> cuts(sizes, sizes)[0]
    [3, 4]
    """
    differs = (np.diff(queries) != 0) | (np.diff(keys) != 0)
    starts = np.concatenate([[0], np.flatnonzero(differs) + 1, [len(keys)]])
    wide, long = (sizes[starts[:-1]] for sizes in (queries, keys))
    best, before = np.zeros(len(starts)), np.zeros(len(starts), dtype=np.int64)
    for end in range(1, len(starts)):
        price = table_cost(starts[end] - starts[:end], _largest(wide[:end]), _largest(long[:end]))
        cost = best[:end] + price
        before[end] = np.argmin(cost)
        best[end] = cost[before[end]]
    ends = [len(starts) - 1]
    while ends[-1]:
        ends.append(int(before[ends[-1]]))
    return [int(starts[end]) for end, _ in pairwise(ends)][::-1], float(best[-1])


def table_cost(rows: Ints, queries: Ints, keys: Ints) -> NDArray[np.float64]:
    """Cost of tables of so many rows of these sizes, in tokens."""
    return TABLE_TOKENS + rows * _row_cost(queries, keys)


def _largest(sizes: Ints) -> Ints:
    """Largest of the sizes from each on to the end."""
    return np.maximum.accumulate(sizes[::-1])[::-1]
