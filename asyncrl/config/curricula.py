"""Names that `task.curriculum` may have."""

from __future__ import annotations

from typing import Any

from asyncrl.algorithms.selection.curriculum import Curriculum, Difficulty, InOrder, Unsolved
from asyncrl.config.plugins import Registry


def _wrong(candidate: Any) -> str:
    if not isinstance(candidate, type) or not callable(getattr(candidate, "next", None)):
        return "it must be a class with a method next(history, live)"
    return ""


CURRICULA: Registry[type[Curriculum]] = Registry(
    "curriculum", {"in_order": InOrder, "unsolved": Unsolved, "difficulty": Difficulty}, _wrong
)
"""Curricula that `task.curriculum` may name."""
