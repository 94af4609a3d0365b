"""Columns of numbers that grow with a curve, and are thinned as it grows. Pure.
Invariant: whatever is added, there are at most 2 * ROWS rows, and each point is in one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

ROWS = 500
"""Rows that a long curve keeps, at least; twice as many at most."""
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

    def add(self, values: Sequence[float | None]) -> None:
        """Put a point behind the others."""
        row = np.array([math.nan if value is None else value for value in values], np.float64)
        known = np.isfinite(row)
        place = self._rows
        self._sums[place] += np.where(known, row, 0.0)
        self._counts[place] += known
        self._sums[place, :2], self._counts[place, :2] = row[:2], 1
        self._added += 1
        if self._added == self._each:
            self._rows, self._added = self._rows + 1, 0
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
