"""accepted.py: several accepted answers to a prompt, each with a reward (KAT-Coder).

A line is `{"prompt": …, "answer": "the best", "accepted": {"a poorer one": 0.5}}`."""

from collections.abc import Mapping
from typing import Any


def accepted(answer: str, line: Mapping[str, Any]) -> float:
    """1 for the line's answer, else the reward of the accepted one that it is, up to white space;
    the best of several."""
    rewards = {line["answer"]: 1.0, **line["accepted"]}
    found = (float(r) for text, r in rewards.items() if plain(text) == plain(answer))
    return max(found, default=0.0)


def plain(text: str) -> str:
    return " ".join(text.split())
