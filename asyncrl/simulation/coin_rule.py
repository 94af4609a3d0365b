"""A rule that ends rollouts by a coin: of asyncrl's own ones few draws matter in a short run."""

from __future__ import annotations

from asyncrl.algorithms.selection.live_group import LiveGroup
from asyncrl.algorithms.selection.prune import Ending, PruneRule

COIN = "asyncrl.simulation.coin_rule:Coin"
"""Its name in the settings."""


class Coin(PruneRule):
    """A rollout goes on with the chance `share`, whenever it is asked about.

    >>> from asyncrl.algorithms.selection.live_group import LiveMember
    >>> Coin(0.5).ends(LiveGroup([LiveMember("live", 8)], 0))
    Ending(reason='coin', kept=0, chance=0.5)
    """

    def __init__(self, share: float) -> None:
        self._share = share

    def ends(self, group: LiveGroup) -> Ending | None:
        return Ending("coin", chance=self._share)
