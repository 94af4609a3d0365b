"""Each past version alike: fictitious self-play."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from asyncrl.algorithms.selection.league import LeagueRule, PastVersion


class Uniform(LeagueRule):
    """Each version is as likely as any other.

    >>> Uniform().weights([PastVersion(0), PastVersion(9)])
    [1.0, 1.0]
    """

    kind: ClassVar[str] = "uniform"

    def weights(self, past: Sequence[PastVersion]) -> list[float]:
        return [1.0 for _ in past]
