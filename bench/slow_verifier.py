"""A verifier that takes its time, as a sandbox or a judge does: 0.2 to 1 second, a function of the answer alone."""

from __future__ import annotations

import time
import zlib
from typing import Any


def exact(answer: str, entry: dict[str, Any]) -> float:
    """1 for the right answer, 0 for another one, after 0.2 to 1 s."""
    time.sleep(0.2 + 0.8 * (zlib.crc32(answer.encode() + str(entry["answer"]).encode()) % 1000) / 1000)
    return float(answer.strip() == entry["answer"])
