"""Sizes of groups with an exact mean, as GDRO has for rollouts.

The mean is that of `least` and `most`. A group has a share of what may be spent in proportion to
the deviation sqrt(p (1 - p)) of its rewards, p being the solve rate at earlier visits: with these
sizes the error of a sum of means is smallest. What easy and hopeless prompts leave is spent on
others, and the sum of all sizes never leaves the mean by more than SLACK times the range of one
group. The authors learn the sizes of ten bins by bandits, and choose sizes of that mean together;
their loss, that of the objective, is about 0 in every group (docs/research.md).
"""

from __future__ import annotations

import math
from typing import ClassVar

from asyncrl.algorithms.selection.group_size import Sizing
from asyncrl.algorithms.selection.prompt_history import History

SLACK = 4
"""Ranges of a group's size that may be saved, or owed."""


class ExactMean(Sizing):
    """A mean of 8 rollouts, from 4 to 12; a prompt that nothing is known of gets what is there.

    >>> history = History()
    >>> ExactMean(4, 12).size(history, 3)
    8
    >>> history.sized(groups=1, rollouts=4)
    >>> ExactMean(4, 12).size(history, 3)
    12
    """

    kind: ClassVar[str] = "gdro"

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def size(self, history: History, prompt_index: int) -> int:
        a, b = history.posterior(prompt_index)
        slack = SLACK * (self._most - self._least)
        may = (self._least + self._most) * (history.groups + 1) / 2 - history.rollouts
        wanted = round(may * 2 * math.sqrt(a * b) / (a + b))
        low = max(self._least, math.ceil(may - slack))
        return min(max(wanted, low), self._most, math.floor(may + slack))
