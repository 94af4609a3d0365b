"""A verifier that takes its time, as a sandbox or a judge does: a function of the answer alone."""

from __future__ import annotations

import time
import zlib
from typing import Any


def exact(answer: str, entry: dict[str, Any]) -> float:
    """1 for the right answer, 0 for another one, after 0.2 to 1 s."""
    return _after(0.2, 1.0, answer, entry)


def longer(answer: str, entry: dict[str, Any]) -> float:
    """The same after 0.2 to 2 s."""
    return _after(0.2, 2.0, answer, entry)


def _after(least: float, most: float, answer: str, entry: dict[str, Any]) -> float:
    time.sleep(
        least
        + (most - least)
        * (zlib.crc32(answer.encode() + str(entry["answer"]).encode()) % 1000)
        / 1000
    )
    return float(answer.strip() == entry["answer"])
