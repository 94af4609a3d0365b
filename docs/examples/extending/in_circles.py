"""in_circles.py: responses that repeat themselves are cut."""

from asyncrl.algorithms.selection.live_group import LiveGroup
from asyncrl.algorithms.selection.prune import Ending


class InCircles:
    """A response more than `share` of which was there before is trained as it is."""

    def __init__(self, share: float) -> None:
        self._share = share

    def ends(self, group: LiveGroup) -> Ending | None:
        begun = group.beginning(group.member)
        return Ending("circles", kept=begun.tokens) if begun.repetition > self._share else None
