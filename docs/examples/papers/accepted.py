"""accepted.py: several accepted answers to a prompt, each with a reward (KAT-Coder).

A line is `{"prompt": …, "accepted": {"the answer": 1.0, "a poorer one": 0.5}}`."""

from collections.abc import Mapping
from typing import Any


def accepted(answer: str, line: Mapping[str, Any]) -> float:
    """The reward of the accepted answer that it is, up to white space; the best of several."""
    said = " ".join(answer.split())
    return max(
        (float(r) for a, r in line["accepted"].items() if " ".join(a.split()) == said), default=0.0
    )
