"""Members kept by their rewards alone. Of equal rewards the place in the group decides, which is no
preference: members are exchangeable.

Advantages compare what is kept. So of a group whose best `count` members are all right, `top` keeps
equal rewards, and a filter of equal rewards drops the group; `top_bottom` keeps rewards that differ
wherever they do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import ClassVar

from asyncrl.algorithms.selection.judged_group import JudgedMember
from asyncrl.algorithms.selection.keep import KeepRule


class Top(KeepRule):
    """Those with the largest rewards.

    >>> Top().choose([JudgedMember(0.0), JudgedMember(1.0), JudgedMember(0.5)], 2, random.Random(0))
    [1, 2]
    """

    kind: ClassVar[str] = "top"

    def choose(self, members: Sequence[JudgedMember], count: int, draw: random.Random) -> list[int]:
        return sorted(range(len(members)), key=lambda at: -members[at].reward)[:count]


class Bottom(KeepRule):
    """Those with the smallest rewards.

    >>> some = [JudgedMember(0.0), JudgedMember(1.0), JudgedMember(0.5)]
    >>> Bottom().choose(some, 2, random.Random(0))
    [0, 2]
    """

    kind: ClassVar[str] = "bottom"

    def choose(self, members: Sequence[JudgedMember], count: int, draw: random.Random) -> list[int]:
        return sorted(range(len(members)), key=lambda at: members[at].reward)[:count]


class TopBottom(KeepRule):
    """The best and the worst, as many of each as make the kept rewards vary most (PODS, arXiv
    2504.13818); of equal variances, those with the fewest of the best. No other choice of as many
    varies more.

    >>> some = [JudgedMember(reward) for reward in (0.0, 1.0, 0.5, 1.0, 0.9)]
    >>> sorted(TopBottom().choose(some, 3, random.Random(0)))
    [0, 1, 3]
    """

    kind: ClassVar[str] = "top_bottom"

    def choose(self, members: Sequence[JudgedMember], count: int, draw: random.Random) -> list[int]:
        order = sorted(range(len(members)), key=lambda at: members[at].reward)
        choices = [order[: count - best] + order[len(order) - best :] for best in range(count + 1)]
        return max(choices, key=lambda chosen: _variance([members[at].reward for at in chosen]))


def _variance(rewards: Sequence[float]) -> float:
    mean = math.fsum(rewards) / len(rewards)
    return math.fsum((reward - mean) * (reward - mean) for reward in rewards)
