"""A prefix tree of sequences. Invariant: a common prefix of sequences is stored once, and every
sequence is the same path as by itself.

Sharing depends only on content: the prompt of a group, common turns of the branches of an agent's
episode, the first tokens of responses that start alike. So the origin of a sequence does not
matter. Sorted by their ids, sequences that start alike are neighbours, and the common prefix of any
two is the shortest of those between neighbours on the way. So one number for each, the tokens that
it shares with the one before, defines the tree.

A *place* is one token of the tree. Places stand in depth-first order. A *segment* is the places
that one sequence adds to those before it: its end, without the shared part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class PrefixTree(NamedTuple):
    """Sequences with shared prefixes.

    `ids`: int64 [places], in depth-first order. Of each sequence, int64 [sequences]: its `length`,
    at least 1, and how many of its tokens are `shared` with the one before, less than its length (0
    for the first). It has a segment of at least one place.

    >>> tree, of = prefix_tree([np.array(ids) for ids in ([7, 8, 3], [7, 8, 1, 2], [7, 8, 3])])
    >>> tree.ids.tolist(), tree.shared.tolist(), of.tolist()
    ([7, 8, 1, 2, 3], [0, 2], [1, 0, 1])
    >>> [path.tolist() for path in tree.paths()]
    [[0, 1, 2, 3], [0, 1, 4]]
    >>> tree.positions().tolist(), tree.parents().tolist(), tree.ends().tolist()
    ([0, 1, 2, 3, 2], [-1, 0, 1, 2, 1], [5, 5, 4, 4, 5])
    """

    ids: Ints
    length: Ints
    shared: Ints

    @property
    def first(self) -> Ints:
        """First place of each segment, int64 [sequences]."""
        own = self.length - self.shared
        first: Ints = np.cumsum(own) - own
        return first

    def paths(self) -> list[Ints]:
        """Places of each whole sequence, from its first token on, int64 [length]."""
        path = np.zeros(0, dtype=np.int64)
        paths = []
        for first, length, shared in self._segments():
            path = np.concatenate([path[:shared], np.arange(first, first + length - shared)])
            paths.append(path)
        return paths

    def positions(self) -> Ints:
        """Position of each place in every sequence that has it, int64 [places]."""
        return ranges(self.shared, self.length - self.shared)

    def parents(self) -> Ints:
        """The place before each place, -1 where it is the first of its sequence; int64 [places]."""
        parents = np.arange(-1, len(self.ids) - 1)
        for path, first, shared in zip(self.paths(), self.first, self.shared, strict=True):
            parents[first] = path[shared - 1] if shared else -1
        return parents

    def ends(self) -> Ints:
        """The place after the last one whose path has each place, int64 [places]: the path of q has
        k if k <= q < ends[k]."""
        ends = np.full(len(self.ids), len(self.ids))
        path = np.zeros(0, dtype=np.int64)
        for first, length, shared in self._segments():
            ends[path[shared:]] = first
            path = np.concatenate([path[:shared], np.arange(first, first + length - shared)])
        return ends

    def part(self, sequences: Ints) -> PrefixTree:
        """The tree of some of the sequences (ascending indexes, at least one)."""
        (part,) = self.parts([sequences])
        return part

    def parts(self, divisions: Sequence[Ints]) -> list[PrefixTree]:
        """The tree of each division, as in `part`, in one pass over all sequences."""
        paths, parts = self.paths(), []
        for sequences in divisions:
            shared = self.shared_by(sequences)
            places = [paths[s][begin:] for s, begin in zip(sequences.tolist(), shared, strict=True)]
            parts.append(
                PrefixTree(self.ids[np.concatenate(places)], self.length[sequences], shared)
            )
        return parts

    def shared_by(self, sequences: Ints) -> Ints:
        """Tokens that each of some sequences (as in `part`) shares with the one before it among
        them: the least shared count between the two."""
        until = self.shared[: sequences[-1] + 1]
        between = np.minimum.reduceat(until, np.append(0, sequences[:-1] + 1))
        between[0] = 0
        return between

    def _segments(self) -> Iterator[tuple[int, int, int]]:
        columns = (self.first.tolist(), self.length.tolist(), self.shared.tolist())
        return zip(*columns, strict=True)


def prefix_tree(
    sequences: Sequence[NDArray[np.int32]], *, shared: bool = True
) -> tuple[PrefixTree, Ints]:
    """The tree of sequences (each of at least one id), and the one of its sequences that each of
    them is, int64 [sequences]: equal ones are one. If not `shared`, each is separate. Trees are in
    the order of their shortest sequences, so that neighbours have similar lengths.
    """
    length = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    order, common = np.argsort(length, kind="stable"), np.zeros_like(length)
    if shared:
        # big-endian bytes compare as the ids do, and a prefix comes before what extends it
        keys = [sequence.astype(">i4").tobytes() for sequence in sequences]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)
        common[1:] = [_common(sequences[a], sequences[b]) for a, b in pairwise(order.tolist())]
        roots = np.flatnonzero(common == 0)
        shortest = np.minimum.reduceat(length[order], roots)
        sizes = np.diff(np.append(roots, len(order)))
        by_length = np.argsort(shortest, kind="stable")
        moved = ranges(roots[by_length], sizes[by_length])
        order, common = order[moved], common[moved]
    new = common < length[order]
    of = np.empty_like(order)
    of[order] = np.cumsum(new) - 1
    ids = [sequences[s][c:] for s, c in zip(order[new].tolist(), common[new], strict=True)]
    return PrefixTree(np.concatenate(ids).astype(np.int64), length[order[new]], common[new]), of


def _common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Tokens that two sequences have in common at their start."""
    most = min(len(one), len(other))
    differs = one[:most] != other[:most]
    first = int(differs.argmax())
    return first if differs[first] else most


def ranges(starts: Ints, sizes: Ints) -> Ints:
    """`sizes[i]` numbers counted up from `starts[i]`, for each i, joined.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    return np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
