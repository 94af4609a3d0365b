"""DARS (arXiv 2508.13755): a second stage for prompts that fewer than half of the first stage's
rollouts solve.

With N rollouts of which the share a < 1/2 solved the prompt (a = 0 counts as 1 / (2 N)), and S =
2 a (1 - a), the sum of the advantages' sizes over the group is about N S. It is raised to

    equal treatment     N / 2, that of a = 1/2
    hardness-weighted   N (1 - a), the more the harder

by ceil((target - N S) / S) rollouts more, up to `most`. So a hard prompt counts more because more
rollouts of it are summed: a mean over each group would take that back.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from fractions import Fraction
from typing import ClassVar

from asyncrl.algorithms.selection.growth import GrowingGroup, GrowingSizing
from asyncrl.algorithms.selection.prompt_history import History


class TwoStages(GrowingSizing):
    """Base of both treatments: a group of the first stage grows once, if less than half of it
    solved the prompt, by the sum that `_target` names.

    >>> Dars(8, 32).size(History(), 0)  # the first stage
    8
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def size(self, history: History, prompt_index: int) -> int:
        return self._least

    def grow(self, group: GrowingGroup) -> int:
        if group.size > self._least or 2 * group.solved >= len(group.members):
            return group.size
        first = group.size
        share = Fraction(group.solved, len(group.members)) or Fraction(1, 2 * first)
        spread = 2 * share * (1 - share)
        more = math.ceil((first * self._target(share) - first * spread) / spread)
        return min(first + max(more, 0), self._most)

    @abstractmethod
    def _target(self, share: Fraction) -> Fraction:
        """The sum to reach, for each rollout of the first stage."""


class Dars(TwoStages):
    """Equal treatment: of 8 rollouts one solved the prompt, so 11 more are due.

    >>> from asyncrl.algorithms.selection.judged_group import JudgedMember
    >>> one_of_8 = [JudgedMember(1.0, right=True)] + [JudgedMember(0.0)] * 7
    >>> Dars(8, 40).grow(GrowingGroup(8, one_of_8)), Dars(8, 16).grow(GrowingGroup(8, one_of_8))
    (19, 16)
    """

    kind: ClassVar[str] = "dars"

    def _target(self, share: Fraction) -> Fraction:
        return Fraction(1, 2)


class DarsHard(TwoStages):
    """Hardness-weighted treatment: of 8 rollouts one solved the prompt, so 24 more are due.

    >>> from asyncrl.algorithms.selection.judged_group import JudgedMember
    >>> one_of_8 = [JudgedMember(1.0, right=True)] + [JudgedMember(0.0)] * 7
    >>> DarsHard(8, 72).grow(GrowingGroup(8, one_of_8))
    32
    """

    kind: ClassVar[str] = "dars_hard"

    def _target(self, share: Fraction) -> Fraction:
        return 1 - share
