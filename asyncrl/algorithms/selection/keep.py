"""Choice of the members of a finished group that are trained. Invariant: the others are discarded
as `not_chosen`, and a choice is a function of the seed, the group and what the journal has of it.

`all`         every member with a reward
`top_bottom`  the best and the worst, as many of each as make rewards vary most (keep_by_reward.py)
`top`         the best
`bottom`      the worst
`roc`         GRPO-RoC: of the right answers those with the fewest failed calls of tools, of the
              others any (keep_roc.py)

Where it looks at rewards alone, the expected gradient of a prompt keeps its direction if rewards
are 0 and 1: given their counts, members are exchangeable. A choice by anything else changes what is
learned (docs/rewards.md).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from operator import index
from typing import ClassVar, Protocol

from asyncrl.algorithms.selection.judged_group import JudgedMember


class KeepRule(Protocol):
    """Rule of which members of a finished group are trained (`train.keep`). It has no state of its
    own; docs/extending.md adds one.

    >>> class Shortest(KeepRule):
    ...     def choose(self, members, count, draw):
    ...         return sorted(range(len(members)), key=lambda at: members[at].tokens)[:count]
    >>> some = [JudgedMember(1.0, tokens=tokens) for tokens in (9, 3, 5)]
    >>> Shortest().choose(some, 2, random.Random(0))
    [1, 2]
    """

    def choose(
        self, members: Sequence[JudgedMember], count: int, draw: random.Random
    ) -> Sequence[int]:
        """Return the positions of those that are trained: one at least, each once. `count` is
        `train.keep_members`, or half of them, and never more than there are. `draw` is of this
        group: its numbers are the same whenever the rule is asked."""
        ...


class KeepAll(KeepRule):
    """Every member.

    >>> KeepAll().choose([JudgedMember(1.0), JudgedMember(0.0)], 1, random.Random(0))
    [0, 1]
    """

    kind: ClassVar[str] = "all"

    def choose(self, members: Sequence[JudgedMember], count: int, draw: random.Random) -> list[int]:
        return [*range(len(members))]


def positions(chosen: Sequence[int], members: int) -> list[int]:
    """Return what a rule has chosen of this many members, in ascending order. Raises ValueError for
    an empty choice, a position of no member, or one twice.

    >>> positions([2, 0], members=3)
    [0, 2]
    """
    try:
        places = sorted(-1 if isinstance(place, bool) else index(place) for place in chosen)
    except TypeError:
        places = [-1]
    known = not places or (places[0] >= 0 and places[-1] < members)
    if not places or not known or len(set(places)) < len(places):
        raise ValueError(
            f"keeps {chosen} of {members} members; return one position or more, from 0 to "
            f"{members - 1}, each once"
        )
    return places


def number_kept(members: int, wanted: int = 0) -> int:
    """Number that a rule is asked to keep of this many members; `wanted` is `train.keep_members`.

    >>> number_kept(16), number_kept(7), number_kept(1), number_kept(7, 5), number_kept(3, 5)
    (8, 4, 1, 5, 3)
    """
    return min(wanted or (members + 1) // 2, members)
