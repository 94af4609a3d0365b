"""The newest past version alone: plain self-play, a checkpoint behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from asyncrl.algorithms.selection.league import LeagueRule, PastVersion


class Latest(LeagueRule):
    """The newest version is always drawn.

    >>> Latest().weights([PastVersion(0), PastVersion(9)])
    [0.0, 1.0]
    """

    kind: ClassVar[str] = "latest"

    def weights(self, past: Sequence[PastVersion]) -> list[float]:
        return [float(place == len(past) - 1) for place in range(len(past))]
