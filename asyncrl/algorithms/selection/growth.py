"""Groups that grow: a sizing may be asked again when all members that a group has are judged.
Invariant: the answer is a function of the journal, so a run that a crash interrupted between the
last verdict and the answer grows the group alike.

`dars`, `dars_hard`  DARS: once, more where fewer than half of the rollouts solve the prompt
                     (dars.py)
`v05`                V0.5: one more, while that tells enough about the prompt's mean (v05_growth.py)
`xrpo`               XRPO: a stage, while the mean's confidence interval shrinks enough (xrpo.py)

A group that grew has more rollouts in the step, and loses none: its weight is a sum over its
members, so it counts for more. `train.group_weight = "mean"` takes that back (docs/research.md).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from asyncrl.algorithms.selection.group_size import Sizing
from asyncrl.algorithms.selection.judged_group import JudgedMember
from asyncrl.messages import PromptFacts


class GrowingGroup(NamedTuple):
    """A group whose `size` rollouts are all judged or buried. `members` are those with a reward, in
    their order; `prompt` is what was known of the prompt when the group was admitted.

    >>> group = GrowingGroup(3, [JudgedMember(1.0, right=True), JudgedMember(0.0)])
    >>> group.rewards, group.solved
    ([1.0, 0.0], 1)
    """

    size: int
    members: Sequence[JudgedMember]
    prompt: PromptFacts = PromptFacts()

    @property
    def rewards(self) -> list[float]:
        """The rewards, in the order of `members`."""
        return [member.reward for member in self.members]

    @property
    def solved(self) -> int:
        """The number of members that solved the prompt."""
        return sum(member.right for member in self.members)


class GrowingSizing(Sizing, Protocol):
    """Rule for the size of groups that may grow; docs/extending.md adds one.

    >>> class UntilSolved(GrowingSizing):
    ...     def __init__(self, least, most):
    ...         self._least, self._most = least, most
    ...     def size(self, history, prompt_index):
    ...         return self._least
    ...     def grow(self, group):
    ...         return group.size if group.solved else min(2 * group.size, self._most)
    >>> UntilSolved(2, 8).grow(GrowingGroup(4, [JudgedMember(0.0)] * 4))
    8
    """

    @abstractmethod
    def grow(self, group: GrowingGroup) -> int:
        """Return the number of rollouts that the group is to have: from `group.size`, which ends
        its growth, to `most`. A group of `most`, or without a reward, is not asked about."""
        ...
