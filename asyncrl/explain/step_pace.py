"""The pace of the last steps, and the time left at that pace. Pure."""

from __future__ import annotations

from collections import deque

STEPS = 10
"""Steps over which a pace is taken."""


class StepPace:
    """The seconds at which the last steps were first seen.

    >>> pace = StepPace()
    >>> for seconds, step in ((0, 0), (60, 1), (70, 2), (80, 3), (85, 3)):
    ...     pace.saw(seconds, step)
    >>> pace.left_s(3, 13)  # the first step, which waits for the start, says nothing of others
    100.0
    >>> pace.saw(110, 3)  # this one takes longer than the others
    >>> pace.left_s(3, 13)
    166.66666666666669
    """

    def __init__(self) -> None:
        self._seen = deque[tuple[float, int]](maxlen=STEPS + 1)
        self._now = 0.0

    def saw(self, seconds: float, step: int) -> None:
        """Note that a run is at a step, so many seconds after it began."""
        last = self._seen[-1] if self._seen else None
        if last is not None and (step < last[1] or seconds < last[0]):
            self._seen.clear()  # another life began
        if not self._seen or step > self._seen[-1][1]:
            self._seen.append((seconds, step))
        self._now = seconds

    def left_s(self, step: int, steps: int) -> float | None:
        """Seconds until all steps are made, None before two were seen; a step that takes longer
        than those before makes it longer."""
        known = [one for one in self._seen if one[1] > 0]
        if len(known) < 2 or step >= steps:
            return None
        (began, first), (ended, last) = known[0], known[-1]
        each = (ended - began) / (last - first)
        waited = self._now - ended
        if waited > each:
            each = (self._now - began) / (last - first + 1)
        return (steps - step) * each
