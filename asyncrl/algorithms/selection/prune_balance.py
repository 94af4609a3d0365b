"""ARRoL's balance (a part of a group goes on, and of that half is likely right), one at a time."""

from __future__ import annotations

import math
from typing import ClassVar

from asyncrl.algorithms.selection.live_group import LiveGroup
from asyncrl.algorithms.selection.prune import Ending, PruneRule
from asyncrl.algorithms.selection.success_odds import SuccessOdds

RIGHT = 0.5
"""Share of those that go on that is to be right (ARRoL's ρ)."""


class Balance(PruneRule):
    """The share `share` of a group goes on (ARRoL's K). A rollout that is asked about ends if that
    many go on already, or if those that do are likely right too often already and it is, or the
    reverse. It stays where no more members are left to ask about than are missing. The authors'
    code was not published. They rank all members of a group at a time, by a calibrated head on
    hidden states; here members come in the order of their tokens, each is compared with those
    before it, and `SuccessOdds` predicts.

    >>> from asyncrl.algorithms.selection.live_group import LiveMember
    >>> Balance(0.5).ends(LiveGroup([LiveMember("live", 8)] * 4, 0))
    """

    kind: ClassVar[str] = "balance"

    def __init__(self, share: float) -> None:
        self._share = share
        self._odds = SuccessOdds()

    def ends(self, group: LiveGroup) -> Ending | None:
        if group.member.asked or not self._odds.learn(group.judged, group.judged_count):
            return None
        chances, open_ = list[float](), 0
        for place, member in enumerate(group.members):
            if place == group.asked or member.state == "ended":
                continue
            if member.state == "judged":
                chances.append(float(member.right))
            elif member.asked or member.state == "sealed":
                chances.append(self._odds.of(group.beginning(member)))
            else:
                open_ += 1
        missing = math.ceil(self._share * len(group.members)) - len(chances)
        if missing > open_:
            return None
        own = self._odds.of(group.beginning(group.member))
        surplus = sum(chances) - RIGHT * len(chances)  # of likely right ones
        unbalances = (own - RIGHT) * surplus > 0
        return Ending("balance") if missing <= 0 or unbalances else None
