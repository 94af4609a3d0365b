"""GRPO-RoC, resampling on correct (rStar2-Agent, arXiv 2508.20722): a group is oversampled, and
right answers and others are kept in proportion. Of the others it keeps any; of the right ones those
of the smallest penalty, which is

    failed calls of tools / calls of tools           0.5 if no tool was called
    + min((answers - 1) / turns, 1)                  1 if there is no answer

An answer is a turn whose key is `answer`. Where an agent gives no such key, an episode has one
answer, unless it was cut at its budget.

By the penalty it learns another objective than the reward's (on a toy the cosine of the expected
gradient to the true one is 0.965; without the penalty, 1.0000): if you can, put what you want from
answers into the reward.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from asyncrl.algorithms.selection.judged_group import JudgedMember
from asyncrl.algorithms.selection.keep import KeepRule


def penalty(member: JudgedMember) -> float:
    """The penalty of an unclean episode, from 0 to 2.

    >>> penalty(JudgedMember(1.0, turns=5, failed=1)), penalty(JudgedMember(1.0, cut=True))
    (0.25, 1.5)
    """
    calls = max(member.calls, member.failed)
    of_tools = member.failed / calls if calls else 0.5
    answers = [*member.keys].count("answer") or (not member.cut)
    return of_tools + (min((answers - 1) / max(member.turns, 1), 1.0) if answers else 1.0)


class Roc(KeepRule):
    """Right answers and others in proportion, one of each at least where there are both.

    Of four right answers and two others three are kept: the two right ones without a failed call,
    and one other.

    >>> some = [JudgedMember(1.0, right=True, turns=4, failed=failed) for failed in (2, 0, 1, 0)]
    >>> sorted(Roc().choose([*some, JudgedMember(0.0)], 3, random.Random(0)))
    [1, 3, 4]
    """

    kind: ClassVar[str] = "roc"

    def choose(self, members: Sequence[JudgedMember], count: int, draw: random.Random) -> list[int]:
        right = [at for at, member in enumerate(members) if member.right]
        others = [at for at, member in enumerate(members) if not member.right]
        of_right = round(count * len(right) / len(members))
        if right and others and count > 1:
            of_right = min(max(of_right, 1), count - 1)
        cleanest = sorted(right, key=lambda at: (penalty(members[at]), draw.random()))[:of_right]
        return cleanest + draw.sample(others, count - of_right)
