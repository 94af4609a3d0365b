"""A check: what it compares with, the seconds it may take, and the numbers that it finds.

Invariant: a verdict follows from numbers and their bounds, or says in words why there are none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMALL_TIMES = 4
"""Times as long that checks may take in their small form: processors may be others' too."""


class Lacks(Exception):
    """The machine lacks what a check needs; the message names it."""


@dataclass(frozen=True)
class Number:
    """A number that was found, and the bounds that it is held to, where it has any."""

    name: str
    value: float
    unit: str = ""
    least: float | None = None
    most: float | None = None

    @property
    def held(self) -> bool:
        """True if it is within its bounds. A bounded number that is none is not."""
        if self.least is None and self.most is None:
            return True
        return (
            math.isfinite(self.value)
            and (self.least is None or self.value >= self.least)
            and (self.most is None or self.value <= self.most)
        )

    def __str__(self) -> str:
        """The number with its bounds.

        >>> str(Number("copied", 12.25, "GB/s", least=10.0))
        'copied 12.2 GB/s (≥ 10)'
        """
        bounds = [f"≥ {self.least:.3g}"] if self.least is not None else []
        bounds += [f"≤ {self.most:.3g}"] if self.most is not None else []
        value = f"{self.value:,.0f}" if abs(self.value) >= 1000 else f"{self.value:.3g}"
        text = f"{self.name} {value} {self.unit}".rstrip()
        return f"{text} ({', '.join(bounds)})" if bounds else text


@dataclass(frozen=True)
class Place:
    """The machine as a check sees it: `cuda` or `cpu`, and a folder that is gone afterwards.
    `small`: so little work that processors have it done in seconds, which measures nothing and
    shows that the check works."""

    device: str
    folder: Path
    small: bool

    def patience(self, seconds: float) -> float:
        """Seconds to wait for another process, of so many on a GPU's machine.

        >>> Place("cpu", Path(), True).patience(40.0)
        160.0
        """
        return seconds * (SMALL_TIMES if self.small else 1)


@dataclass(frozen=True)
class Check:
    """`function` is `module:name` within this package, takes a Place and gives Numbers, or raises
    Lacks. `floor` is what its numbers are compared with, and why. It may take `seconds`, and needs
    so many `gpus`."""

    name: str
    function: str
    floor: str
    seconds: float
    gpus: int = 1


@dataclass(frozen=True)
class Ok:
    """Every number is within its bounds."""

    numbers: tuple[Number, ...]
    word = "ok"

    @property
    def said(self) -> str:
        return "; ".join(map(str, self.numbers))


@dataclass(frozen=True)
class Missed:
    """Some number is not."""

    numbers: tuple[Number, ...]
    word = "missed"

    @property
    def said(self) -> str:
        first = sorted(self.numbers, key=lambda number: number.held)
        return "; ".join(map(str, first))


@dataclass(frozen=True)
class Skipped:
    """It was not run, for this reason."""

    reason: str
    word = "skipped"

    @property
    def said(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Failed:
    """It was run and found nothing: the error, in one line."""

    error: str
    word = "failed"

    @property
    def said(self) -> str:
        return self.error


@dataclass(frozen=True)
class TimedOut:
    """It was killed after so many seconds; what it wrote last, in one line."""

    seconds: float
    last: str
    word = "timed out"

    @property
    def said(self) -> str:
        return f"killed after {self.seconds:.3g} s" + (f"; {self.last}" if self.last else "")


Verdict = Ok | Missed | Skipped | Failed | TimedOut


def judged(numbers: Sequence[Number]) -> Verdict:
    """The verdict on a check that has run to its end."""
    found = tuple(numbers)
    if not found:
        return Failed("it found no number")
    return Ok(found) if all(number.held for number in found) else Missed(found)


def as_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON has it; a number that is none is null."""
    numbers = verdict.numbers if isinstance(verdict, Ok | Missed) else ()
    return {
        "verdict": verdict.word,
        "said": verdict.said,
        "numbers": [
            {
                "name": number.name,
                "value": number.value if math.isfinite(number.value) else None,
                "unit": number.unit,
                "least": number.least,
                "most": number.most,
                "held": number.held,
            }
            for number in numbers
        ],
    }
