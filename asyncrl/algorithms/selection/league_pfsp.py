"""Prioritized fictitious self-play (AlphaStar): the versions that win are drawn most.

The weight is the square of how often a version wins, which its mean reward says, of rewards from 0
to 1; of rewards beyond that all are certain wins or losses. A version without games counts as
even, and one that never wins is still drawn now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from asyncrl.algorithms.selection.league import LeagueRule, PastVersion

PRIOR = 2.0
"""Games that a version counts as having ended evenly before its first."""


class Pfsp(LeagueRule):
    """A version that wins often is drawn often.

    >>> lost, won = PastVersion(0, games=8, reward=0.0), PastVersion(9, games=8, reward=1.0)
    >>> [round(weight, 2) for weight in Pfsp().weights([lost, won])]
    [0.01, 0.81]
    """

    kind: ClassVar[str] = "pfsp"

    def weights(self, past: Sequence[PastVersion]) -> list[float]:
        return [
            ((PRIOR / 2 + one.games * min(1.0, max(0.0, one.reward))) / (PRIOR + one.games)) ** 2
            for one in past
        ]
