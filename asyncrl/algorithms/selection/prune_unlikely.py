"""Rollouts that probably fail are ended, by a draw."""

from __future__ import annotations

from typing import ClassVar

from asyncrl.algorithms.selection.live_group import LiveGroup
from asyncrl.algorithms.selection.prune import Ending, PruneRule
from asyncrl.algorithms.selection.success_odds import SuccessOdds

LEAST = 0.1
"""Smallest chance to go on. So some of the unlikely ones tell how they end, and no weight of one
that goes on is over 10 for each time that it was asked about."""


class Unlikely(PruneRule):
    """A rollout whose chance of success is predicted as p goes on with the chance p / bound, and at
    least `LEAST`. The bound is `share` of the mean of the last judged responses: so where all are
    alike, none is ended, however hard the prompts are. Without enough judged responses all go on.
    (ARRoL cuts by a head on hidden states, which servers do not give, and without a draw.)

    >>> from asyncrl.algorithms.selection.live_group import LiveMember
    >>> Unlikely(0.5).ends(LiveGroup([LiveMember("live", 8)], 0))
    """

    kind: ClassVar[str] = "unlikely"

    def __init__(self, share: float) -> None:
        self._share = share
        self._odds = SuccessOdds()

    def ends(self, group: LiveGroup) -> Ending | None:
        if not self._odds.learn(group.judged, group.judged_count):
            return None
        bound = self._share * self._odds.mean
        chance = self._odds.of(group.beginning(group.member))
        return None if chance >= bound else Ending("unlikely", chance=max(LEAST, chance / bound))
