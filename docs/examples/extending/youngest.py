"""youngest.py: the youngest groups first."""

from collections.abc import Sequence

from asyncrl.algorithms.selection.replay import Candidate


class Youngest:
    """By the oldest token of a group, the youngest first."""

    def choose(self, candidates: Sequence[Candidate], count: int) -> list[int]:
        ranked = sorted(candidates, key=lambda candidate: -candidate.oldest)
        return [candidate.group for candidate in ranked[:count]]
