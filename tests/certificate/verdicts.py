"""A verifier whose rewards differ within a group, whatever a model with random weights says."""

from __future__ import annotations

from typing import Any


def score(answer: str) -> float:
    """The share of letters and digits in the answer; 0 of an empty one."""
    return sum(character.isalnum() for character in answer) / max(1, len(answer))


def verdict(answer: str, entry: dict[str, Any]) -> float:
    return score(answer)
