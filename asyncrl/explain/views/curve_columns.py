"""Columns of numbers that grow with a curve, and are thinned as it grows. Pure.
Invariant: whatever is added, there are at most 2 * ROWS rows, and each point is in one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

ROWS = 500
"""Rows that a long curve keeps, at least; twice as many at most."""
TOGETHER = 256
"""New points that are put into rows at a time."""
CurveNumbers = dict[str, list[float | None]]
"""Numbers of each row, by the name of their column."""
DIGITS = 5
"""Digits of a number that a chart is given."""


class CurveColumns:
    """Rows of numbers by `names`, of which the first two are places (a version, seconds) that only
    grow. Where there are many, neighbours become one row: the last place, and the mean of what is
    finite of the others.

    >>> columns = CurveColumns(("version", "seconds", "loss"))
    >>> columns.add([1.0, 10.0, None])
    >>> columns.add([2.0, 20.0, 0.5])
    >>> columns.numbers()
    {'version': [1.0, 2.0], 'seconds': [10.0, 20.0], 'loss': [None, 0.5]}
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._sums = np.zeros((2 * ROWS, len(self.names)))
        self._counts = np.zeros((2 * ROWS, len(self.names)), np.int64)
        self._rows, self._each, self._added = 0, 1, 0  # whole rows, points in each, in the next
        self._new = list[Sequence[float | None]]()  # points that are in no row yet

    def add(self, values: Sequence[float | None]) -> None:
        """Put a point behind the others."""
        self._new.append(values)
        if len(self._new) == TOGETHER:
            self._place()

    def _place(self) -> None:
        """Put the new points into rows."""
        points, self._new = np.array(self._new, np.float64).reshape(-1, len(self.names)), []
        while len(points):
            room = (2 * ROWS - self._rows) * self._each - self._added
            some, points = points[:room], points[room:]
            at = self._added + np.arange(len(some))
            places, known = self._rows + at // self._each, np.isfinite(some)
            np.add.at(self._sums, places, np.where(known, some, 0.0))
            np.add.at(self._counts, places, known)
            self._sums[places, :2], self._counts[places, :2] = some[:, :2], 1
            rows, self._added = divmod(self._added + len(some), self._each)
            self._rows += rows
            if self._rows == 2 * ROWS:
                self._halve()

    def _halve(self) -> None:
        for of in (self._sums, self._counts):
            pairs = of.reshape(ROWS, 2, -1)
            merged = pairs.sum(1)
            merged[:, :2] = pairs[:, 1, :2]
            of[:ROWS], of[ROWS:] = merged, 0
        self._rows, self._each = ROWS, 2 * self._each

    def numbers(self) -> CurveNumbers:
        """The numbers by name, None for what is not known; a row that is not whole is the last."""
        self._place()
        rows = self._rows + (self._added > 0)
        sums, counts = self._sums[:rows], self._counts[:rows]
        means = np.divide(sums, counts, where=counts > 0, out=np.full_like(sums, math.nan))
        places, values = self.names[:2], self.names[2:]
        found: CurveNumbers = {
            name: [round(place, 2) for place in column]
            for name, column in zip(places, means.T[:2].tolist(), strict=True)
        }
        return found | {
            name: [_short(value) for value in column]
            for name, column in zip(values, means.T[2:].tolist(), strict=True)
        }


def _short(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
