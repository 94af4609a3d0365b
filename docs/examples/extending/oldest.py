"""oldest.py: past versions by their age, the oldest most."""

from collections.abc import Sequence

from asyncrl.algorithms.selection.league import LeagueRule, PastVersion


class Oldest(LeagueRule):
    """A version is drawn half as often as the one before it."""

    def weights(self, past: Sequence[PastVersion]) -> list[float]:
        return [0.5**place for place in range(len(past))]
