"""Progress of what takes long at this moment: since when, and how long still.

It looks once a second (the watchdog's tick). What is counted is estimated by its own pace, what is
not by the time that the last of its kind took.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from asyncrl.messages import Progress
from asyncrl.runtime.progress import left_s

SHOWN_S = 2.0
"""Seconds after which it is shown."""


class Found(NamedTuple):
    """Something of a `kind` that is under way: `what`, and so much `done` of so much, 0 of 0 where
    nothing is counted."""

    kind: str
    what: str
    done: int = 0
    of: int = 0
    note: str = ""


class Underway:
    """Memory of since when each kind is under way, and of how long the last one of it took."""

    def __init__(self) -> None:
        self.shown: list[Progress] = []
        """Progress of what is under way for `SHOWN_S` at least."""
        self._since: dict[str, tuple[float, int]] = {}  # time, and what was done by then
        self._last_s: dict[str, float] = {}

    def look(self, under_way: Iterable[Found], now: float) -> None:
        """Take note of what is under way `now`."""
        current = list(under_way)
        kinds = {one.kind for one in current}
        for kind in [kind for kind in self._since if kind not in kinds]:
            self._last_s[kind] = now - self._since.pop(kind)[0]
        self.shown = []
        for one in current:
            since, first = self._since.setdefault(one.kind, (now, one.done))
            if (seconds := now - since) >= SHOWN_S:
                last_s = self._last_s.get(one.kind)
                left = left_s(first, one.done, one.of, seconds)
                if left is None and last_s is not None:
                    left = max(0.0, last_s - seconds)
                self.shown.append(Progress(one.what, one.done, one.of, seconds, left, one.note))
