"""Filters of finished groups: which are trained. Invariant: what a filter leaves out is dropped
under its name, and no token of it is trained.

`zero_variance`  groups whose compared rewards differ: those of the members, or with a credit by
                 turn their returns at any turn. It is contested where rollouts and not updates are
                 the budget: RL-ZVP (arXiv 2509.21880) learns from what it leaves out
`none`           all
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from asyncrl.algorithms.selection.judged_group import JudgedGroup


class GroupFilter(ABC):
    """Rule of which finished groups are trained; docs/extending.md adds one.

    `drops_equal`: it drops each group whose compared rewards are all equal. Then more groups start
    in their place, and it drops none where an advantage finds a signal in them
    (`Advantage.equal_has_signal`).

    >>> class Hard(GroupFilter):
    ...     def keeps(self, group):
    ...         return sum(group.rewards) < len(group.rewards) / 2
    >>> Hard().keeps(JudgedGroup([1.0, 0.0, 0.0])), Hard.drops_equal
    (True, False)
    """

    kind: ClassVar[str] = ""
    drops_equal: ClassVar[bool] = False

    @abstractmethod
    def keeps(self, group: JudgedGroup) -> bool:
        """Return True if a finished group is trained."""

    def keeps_alone(self, reward: float, baseline: float) -> bool:
        """Return True if a rollout is trained by itself (`train.unit = rollout`)."""
        return True


class ZeroVariance(GroupFilter):
    """Those whose compared rewards are not all equal.

    >>> ZeroVariance().keeps(JudgedGroup([1.0, 0.0])), ZeroVariance().keeps(JudgedGroup([1.0, 1.0]))
    (True, False)
    """

    kind: ClassVar[str] = "zero_variance"
    drops_equal: ClassVar[bool] = True

    def keeps(self, group: JudgedGroup) -> bool:
        return any(min(column) != max(column) for column in group.compared)

    def keeps_alone(self, reward: float, baseline: float) -> bool:
        return reward != baseline


class NoFilter(GroupFilter):
    """All.

    >>> NoFilter().keeps(JudgedGroup([1.0, 1.0]))
    True
    """

    kind: ClassVar[str] = "none"

    def keeps(self, group: JudgedGroup) -> bool:
        return True
