"""not_too_easy.py: groups that are not nearly solved."""

from asyncrl.algorithms.selection.filters import GroupFilter
from asyncrl.algorithms.selection.judged_group import JudgedGroup


class NotTooEasy(GroupFilter):
    """Those whose rewards differ, with a mean of at most 0.8."""

    drops_equal = True  # so more groups start for those

    def keeps(self, group: JudgedGroup) -> bool:
        rewards = group.rewards
        return min(rewards) < max(rewards) and sum(rewards) <= 0.8 * len(rewards)
