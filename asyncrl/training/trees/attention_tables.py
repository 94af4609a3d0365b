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
    the segment's first; and how many of its keys are `shared` and come before its first query,
    int64 [rows]; None where it is 0 for all: then `keys` are the `queries`."""

    sequences: Tensor
    queries: Tensor
    keys: Tensor
    shared: Tensor | None

    def to(self, device: torch.device) -> AttentionTable:
        """The same on a device."""
        queries = self.queries.to(device)
        if self.shared is None:
            return self._replace(queries=queries, keys=queries)
        return self._replace(
            queries=queries, keys=self.keys.to(device), shared=self.shared.to(device)
        )

    def mask(self) -> Tensor | None:
        """Bias of the scores of each query and key: 0 or -inf, float32 [rows, 1, queries, keys];
        None for causal attention."""
        if self.shared is None:
            return None
        device = self.shared.device
        last = self.shared[:, None] + torch.arange(self.queries.shape[1], device=device)
        hidden = torch.arange(self.keys.shape[1], device=device) > last[:, None, :, None]
        return torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)


def attention_tables(tree: PrefixTree) -> tuple[tuple[AttentionTable, ...], Ints]:
    """The tables of a tree, and the index of each place among all their queries, flattened and
    joined; int64 [places].

    >>> tree = PrefixTree(np.array([7, 8, 1, 2, 3]), np.array([4, 3]), np.array([0, 2]))
    >>> tables, home = attention_tables(tree)
    >>> [(table.queries.tolist(), table.keys.tolist()) for table in tables]
    [([[0, 1, 2, 3]], [[0, 1, 2, 3]]), ([[4]], [[0, 1, 4]])]
    >>> home.tolist()
    [0, 1, 2, 3, 4]
    """
    own, first, paths = tree.length - tree.shared, tree.first, tree.paths()
    tables, home, before = [], np.empty(len(tree.ids), dtype=np.int64), 0
    for whole in (True, False):
        chosen = np.flatnonzero((tree.shared == 0) == whole)
        for rows in _cut(chosen, own, tree.length):
            column = np.arange(own[rows].max())
            inside = column < own[rows, None]
            queries = np.where(inside, first[rows, None] + column, first[rows, None])
            home[queries[inside]] = before + np.flatnonzero(inside)
            before += queries.size
            keys = queries
            if not whole:
                keys = np.repeat(first[rows, None], tree.length[rows].max(), axis=1)
                for row, sequence in zip(keys, rows.tolist(), strict=True):
                    row[: len(paths[sequence])] = paths[sequence]
            tables.append(
                AttentionTable(
                    torch.from_numpy(rows),
                    torch.from_numpy(queries),
                    torch.from_numpy(keys),
                    None if whole else torch.from_numpy(tree.shared[rows]),
                )
            )
    return tuple(tables), home


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
