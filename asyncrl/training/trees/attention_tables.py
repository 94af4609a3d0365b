"""Attention of a prefix tree as tables of rows. Invariant: each place is a query once, after its
own path and nothing else.

A row is a segment: its queries are the places of the segment, its keys those of the whole path to
its end. Rows of about one size form a table, right-padded. A segment that shares nothing is its own
path: then causal attention never sees the padding, and no mask is built. Other segments end where
their path ends, so their mask is causal from the bottom right.
"""

from __future__ import annotations

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


class AttentionTable(NamedTuple):
    """Rows of about one size. Of each row: its sequence of the tree, int64 [rows]; its `queries`,
    int64 [rows, queries], and its `keys`, int64 [rows, keys], places of the tree, right-padded with
    the row's first; and how many of its keys are `shared` and come before its first query, int64
    [rows]; None where it is 0 for all. The `queries` of a rank that has some of the places are
    their indexes among its own."""

    sequences: Tensor
    queries: Tensor
    keys: Tensor
    shared: Tensor | None

    def to(self, device: torch.device) -> AttentionTable:
        """The same on a device."""
        queries = self.queries.to(device)
        keys = queries if self.keys is self.queries else self.keys.to(device)
        shared = None if self.shared is None else self.shared.to(device)
        return self._replace(queries=queries, keys=keys, shared=shared)

    def mask(self) -> Tensor | None:
        """Bias of the scores of each query and key: 0 or -inf, float32 [rows, 1, queries, keys];
        None for causal attention."""
        if self.shared is None:
            return None
        device = self.shared.device
        last = self.shared[:, None] + torch.arange(self.queries.shape[1], device=device)
        hidden = torch.arange(self.keys.shape[1], device=device) > last[:, None, :, None]
        return torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)


class _Rows(NamedTuple):
    """Rows of a tree: of each, int64 [rows], its sequence, its `first` place, its `own` queries,
    and how many places of its path are `shared` and come before them."""

    sequence: Ints
    first: Ints
    own: Ints
    shared: Ints

    @property
    def length(self) -> Ints:
        return self.shared + self.own

    def inside(self, begin: int, end: int) -> _Rows:
        """What of the rows has its queries in [begin, end)."""
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
    sequences = np.arange(len(tree.length))
    every, paths = (
        _Rows(sequences, tree.first, tree.length - tree.shared, tree.shared),
        tree.paths(),
    )
    if own is not None:
        every = _rows_of(every, own)
    count = len(tree.ids) if own is None else len(own)
    tables, home, before = [], np.zeros(count, dtype=np.int64), 0
    for whole in (True, False):
        chosen = np.flatnonzero((every.shared == 0) == whole)
        for rows in _cut(chosen, every.own, every.length):
            _, first, queried, shared = (of[rows] for of in every)
            column = np.arange(queried.max())
            inside = column < queried[:, None]
            places = np.where(inside, first[:, None] + column, first[:, None])
            keys = places
            if not whole:
                keys = np.repeat(first[:, None], every.length[rows].max(), axis=1)
                lengths = every.length[rows].tolist()
                for row, of, length in zip(
                    keys, every.sequence[rows].tolist(), lengths, strict=True
                ):
                    row[:length] = paths[of][:length]
            queries = places if own is None else np.searchsorted(own, places)
            home[queries[inside]] = before + np.flatnonzero(inside)
            before += queries.size
            asked = torch.from_numpy(queries)
            tables.append(
                AttentionTable(
                    torch.from_numpy(every.sequence[rows]),
                    asked,
                    asked if keys is queries else torch.from_numpy(keys),
                    None if whole else torch.from_numpy(shared),
                )
            )
    return tuple(tables), home


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


def _cut(rows: Ints, own: Ints, length: Ints) -> list[Ints]:
    """Divide rows into tables: by length or by their own tokens, whichever costs less."""
    if not len(rows):
        return []
    divided = []
    for keys in ((own, length), (length, own)):
        ordered = rows[np.lexsort([of[rows] for of in keys])]
        divided.append((ordered, *cuts(own[ordered], length[ordered])))
    ordered, ends, _ = min(divided, key=lambda of: of[2])
    return np.split(ordered, ends[:-1])


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
    return TABLE_TOKENS + rows * keys * (1 + queries / ROW_QUERIES)


def _largest(sizes: Ints) -> Ints:
    """Largest of the sizes from each on to the end."""
    return np.maximum.accumulate(sizes[::-1])[::-1]
