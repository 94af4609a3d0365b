"""Samples in packed batches that take several ranks equally long. Invariant: each sample is in one,
and none costs more than it may, unless one sample does.

A round of ranks takes as long as its dearest packed batch, so a step's tokens are wasted where one
costs more than the others, or where the last round has fewer than there are ranks. There are as
many batches as ranks, or a multiple of it, filled from the dearest unit on, each into the cheapest
one so far (Graham 1969). A unit is a tree of samples with a common prefix, or a part of one that
costs too much for a fair division, with the prefix computed again in each part.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from asyncrl.training.trees.prefix_tree import Ints

PARTS = (1, 2, 4, 8)
"""Parts of a packed batch that a unit may cost at most. The finer, the more even and the dearer, as
prefixes are computed again; the division that takes least is used."""
ROUND = 0.02
"""Cost of one more round (weights are gathered once more), as a share of the largest batch's."""


def even_packs(
    own: Sequence[float], alone: Sequence[float], roots: Sequence[int], ranks: int, most: float
) -> list[Ints]:
    """The samples of each packed batch (ascending). A sample costs `own` behind the one before it
    in its tree, and `alone` where it begins a batch; trees begin at `roots`, ascending from 0; a
    batch may cost `most`.

    Trees of 9 + 1, 5 and 5, on two ranks:

    >>> [p.tolist() for p in even_packs([9, 1, 5, 5], [9, 2, 5, 5], [0, 2, 3], 2, 99)]
    [[0, 1], [2, 3]]
    """
    tries = list[tuple[float, list[Ints]]]()
    for parts in PARTS:
        least = math.ceil(sum(own) / (ranks * most))
        for times in range(least, least + 3):
            count = ranks * times
            units = _units(own, alone, roots, min(most, 1.02 * sum(own) / count) / parts)
            filled, costs = _filled(units, count)
            if max(costs) <= max(most, max(alone)):
                dearest = sorted(costs, reverse=True)[::ranks]  # of each of `rounds`
                tries.append((sum(dearest) + ROUND * most * len(dearest), filled))
    if not tries:
        units = _units(own, alone, roots, most)
        return [np.array(members) for _, members in units]
    return min(tries, key=lambda each: each[0])[1]


def _units(
    own: Sequence[float], alone: Sequence[float], roots: Sequence[int], most: float
) -> list[tuple[float, list[int]]]:
    """Cost and samples of each tree, or of each part of one that costs more than `most`."""
    found = list[tuple[float, list[int]]]()
    for begin, end in zip(roots, [*roots[1:], len(own)], strict=True):
        cost, members = 0.0, list[int]()
        for sample in range(begin, end):
            if members and cost + own[sample] > most:
                found.append((cost, members))
                cost, members = 0.0, []
            cost += own[sample] if members else alone[sample]
            members.append(sample)
        found.append((cost, members))
    return found


def _filled(units: Sequence[tuple[float, list[int]]], count: int) -> tuple[list[Ints], list[float]]:
    """The samples and the cost of at most `count` batches of these units."""
    heap = [(0.0, at) for at in range(count)]
    filled: list[list[int]] = [[] for _ in range(count)]
    for cost, members in sorted(units, key=lambda unit: (-unit[0], unit[1])):
        total, at = heapq.heappop(heap)
        filled[at] += members
        heapq.heappush(heap, (total + cost, at))
    costs = {at: total for total, at in heap}
    used = [at for at in range(count) if filled[at]]
    return [np.array(sorted(filled[at])) for at in used], [costs[at] for at in used]
