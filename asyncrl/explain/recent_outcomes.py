"""Outcomes of the last answers, groups, calls and attempts of a run: plain numbers of a recent
window, so that what is said of a run is true now, and not on average since it began."""

from __future__ import annotations

import msgspec


class RecentOutcomes(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over the last events of each kind, all 0 before there are any.

    Of the last `rewards` that training answers got, `zeros` were 0 or less; `reward` is their mean
    and `exact` the share of right answers. Of the last `groups` that were taken or filtered,
    `too_easy` were filtered with right answers alone, `too_hard` with no reward above 0, and
    `equal` for other equal rewards. Of the last `calls` of agents to the model some were failed
    calls of tools (`failed_tools`, by name). Of the last `attempts` of agents some failed
    (`failed_attempts`, by kind).

    >>> RecentOutcomes(groups=8, too_easy=2, too_hard=4).filtered
    0.75
    """

    rewards: int = 0
    zeros: int = 0
    reward: float | None = None
    exact: float | None = None
    groups: int = 0
    too_easy: int = 0
    too_hard: int = 0
    equal: int = 0
    calls: int = 0
    failed_tools: dict[str, int] = {}
    attempts: int = 0
    failed_attempts: dict[str, int] = {}

    @property
    def alarming(self) -> RecentOutcomes:
        """The same without groups: that some are filtered is usual, and raises no alarm."""
        return msgspec.structs.replace(self, groups=0, too_easy=0, too_hard=0, equal=0)

    @property
    def filtered(self) -> float | None:
        """The share of the groups that was filtered, 0 to 1; None before there are any."""
        filtered = self.too_easy + self.too_hard + self.equal
        return filtered / self.groups if self.groups else None
