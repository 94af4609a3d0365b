"""Selective Rollout (arXiv 2605.05802): groups whose members begin alike are ended, because they
will probably get equal rewards."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import combinations
from typing import ClassVar

from asyncrl.algorithms.selection.live_group import LiveGroup
from asyncrl.algorithms.selection.prune import Ending, PruneRule

FIRST = 32
"""Tokens that are compared at most: a distance costs their square."""


class Converged(PruneRule):
    """A rollout ends if the mean edit distance between the first tokens of any two members, as a
    share of these tokens, is below `share`. Members that ended by a rule do not count.

    The authors compare the actions of an agent's steps and stop the whole group. Here tokens are
    compared, and the last `rollout.k_min` members go on.

    >>> from asyncrl.algorithms.selection.live_group import LiveMember
    >>> alike = [LiveMember("live", 4, array("i", [5, 6, 7, last]).tobytes()) for last in (8, 9)]
    >>> Converged(0.5).ends(LiveGroup(alike, 0)), Converged(0.2).ends(LiveGroup(alike, 0))
    (Ending(reason='converged', kept=0, chance=0.0), None)
    """

    kind: ClassVar[str] = "converged"

    def __init__(self, share: float) -> None:
        self._share = share

    def ends(self, group: LiveGroup) -> Ending | None:
        size = min(FIRST, len(group.member.ids) // 4)
        members = [member for member in group.members if member.state != "ended"]
        begun = [array("i", member.ids[: 4 * size]) for member in members]
        if len(begun) < 2 or any(
            len(ids) < size and member.state == "live"
            for ids, member in zip(begun, members, strict=True)
        ):
            return None
        pairs = [distance(one, other) / size for one, other in combinations(begun, 2)]
        return Ending("converged") if sum(pairs) / len(pairs) < self._share else None


def distance(one: Sequence[int], other: Sequence[int]) -> int:
    """The edit distance of two sequences: insertions, deletions and changes.

    >>> distance([1, 2, 3], [2, 3, 4])
    2
    """
    if one == other:
        return 0
    row = list(range(len(other) + 1))
    for count, left in enumerate(one, 1):
        before, row[0] = row[0], count
        for place, right in enumerate(other, 1):
            cost = before + (left != right)
            before = row[place]
            row[place] = min(cost, before + 1, row[place - 1] + 1)
    return row[-1]
