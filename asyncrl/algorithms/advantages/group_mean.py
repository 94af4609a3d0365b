"""Weight of a group that does not depend on its size."""

from __future__ import annotations

from typing import ClassVar

from asyncrl.algorithms.advantages.advantage import RewardedSamples
from asyncrl.algorithms.advantages.group_weight import GroupWeight


class GroupMean(GroupWeight):
    """`counts / n` of a group with n rewards: groups of all sizes count as one of `counts` does.

    Without it a group counts as the sum of its rollouts, so one that grew, or that a sizing made
    larger, counts for more: DARS means that, and V0.5, XRPO and GDRO do not. A size that depends on
    the group's own rewards makes 1 / n depend on them, too: docs/research.md has what that does.

    >>> GroupMean().of(RewardedSamples([], {4: [1.0, 0.0], 7: [1.0] * 16}, {}))
    {4: 4.0, 7: 0.5}
    """

    kind: ClassVar[str] = "mean"
    counts: ClassVar[float] = 8.0

    def of(self, given: RewardedSamples) -> dict[int, float]:
        return {group: self.counts / len(rewards) for group, rewards in given.rewards.items()}
