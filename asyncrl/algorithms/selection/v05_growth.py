"""V0.5's number of rollouts: one more while that lowers the error of the prompt's value enough.

The value is estimated by the mean of k rewards, drawn to what was known before. With rewards of -1
and 1, a variance of 1 and D^2 = max(0, (mean - prior)^2 - 1 / k), the error of the best weighted
mean is D^2 / (k D^2 + 1). One more rollout lowers it by D^4 / ((k D^2 + 1) ((k + 1) D^2 + 1)), and
is due while that is over COST (V0.5: from 4 rollouts to 16). The authors' prior is a model of
values, which is not released; here it is the solve rate of earlier visits.
"""

from __future__ import annotations

import math
from typing import ClassVar

from asyncrl.algorithms.selection.growth import GrowingGroup, GrowingSizing
from asyncrl.algorithms.selection.prompt_history import History

COST = 0.0039
"""The fall of the squared error for which one more rollout is worth it: about 1 / 256, which the
seventeenth never has, however far off the prior is (15 * 16 < 256 < 16 * 17)."""


class V05Growth(GrowingSizing):
    """One more at a time: each waits for the verdict on the one before.

    A prompt that no earlier visit solved is now solved by three of four, then by none:

    >>> from asyncrl.algorithms.selection.judged_group import JudgedMember
    >>> from asyncrl.messages import PromptFacts
    >>> never = PromptFacts(posterior=(1.0, 31.0))
    >>> some = [JudgedMember(1.0, right=True)] * 3 + [JudgedMember(0.0)]
    >>> V05Growth(4, 16).grow(GrowingGroup(4, some, never))
    5
    >>> V05Growth(4, 16).grow(GrowingGroup(4, [JudgedMember(0.0)] * 4, never))
    4
    """

    kind: ClassVar[str] = "v05"

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def size(self, history: History, prompt_index: int) -> int:
        return self._least

    def grow(self, group: GrowingGroup) -> int:
        k, rewards = len(group.members), group.rewards
        apart = 2 * (math.fsum(rewards) / k - group.prompt.solve_rate)
        d2 = max(0.0, apart * apart - 1 / k)
        fall = d2 * d2 / ((k * d2 + 1) * ((k + 1) * d2 + 1))
        return group.size + (fall > COST)
