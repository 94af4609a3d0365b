"""The curve as columns, for a table of another tool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from asyncrl.explain.curve import EvaluationPoint, Point, StepPoint

TABLES = {"metrics": "", "figures": "", "discarded": "discarded/"}
"""Fields that are tables, and what their columns' names begin with."""
UNNAMED = ("kind", "weights", "version")


def columns(points: Iterable[Point]) -> dict[str, list[Any]]:
    """One row for each version, in order, and as many items in each column; None where a version
    has no such number. A step gives the fields of a `StepPoint`, its metrics by their names, and
    `discarded/REASON`; an evaluation gives `accuracy`, `asked`, `prompts` and its figures.

    >>> one = EvaluationPoint(version=0, at=1.0, seconds=2.0, accuracy=0.5, figures={"avg@4": 0.25})
    >>> found = columns([one])
    >>> found["version"], found["accuracy"], found["avg@4"]
    ([0], [0.5], [0.25])
    """
    rows = dict[int, dict[str, Any]]()
    for point in points:
        row = rows.setdefault(point.version, {})
        fresh = _row(point)
        rows[point.version] = row | fresh if isinstance(point, StepPoint) else fresh | row
    names = dict.fromkeys(name for version in sorted(rows) for name in rows[version])
    return {
        "version": sorted(rows),
        **{name: [rows[version].get(name) for version in sorted(rows)] for name in names},
    }


def _row(point: StepPoint | EvaluationPoint) -> dict[str, Any]:
    row = dict[str, Any]()
    for name, value in msgspec.structs.asdict(point).items():
        if name in UNNAMED:
            continue
        if name in TABLES:
            row |= {f"{TABLES[name]}{inner}": number for inner, number in value.items()}
        else:
            row[name] = value
    return row
