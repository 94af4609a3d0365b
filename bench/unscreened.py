"""Twelve verifiers that execute what they are given: the nine scorers of reasoning-gym that do,
without the look that `asyncrl.tasks.screen` has at an answer first, and three of our own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sympy import parse_expr

from asyncrl.tasks.gym_library import create_dataset

NINE = (
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
)
Verifier = Callable[[str, Mapping[str, Any]], float]


def scorer(name: str) -> Verifier:
    """The data set's own scorer, of its first question."""
    data = create_dataset(name, seed=1, size=1)
    entry = data[0]

    def score(answer: str, line: Mapping[str, Any]) -> float:
        return float(data.score_answer(entry["answer"] if answer == "right" else answer, entry))

    return score


def python(answer: str, line: Mapping[str, Any]) -> float:
    """1 where the program sets `result` to 42."""
    names: dict[str, Any] = {}
    exec("result = 42" if answer == "right" else answer, names)
    return float(names.get("result") == 42)


def formula(answer: str, line: Mapping[str, Any]) -> float:
    """1 where the formula is 42."""
    return float(parse_expr("6*7" if answer == "right" else answer) == 42)


def shell(answer: str, line: Mapping[str, Any]) -> float:
    """1 where the program, in a process of its own, says 42."""
    program = "print(42)" if answer == "right" else answer
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    return float(done.stdout == b"42\n")


VERIFIERS = {name: scorer(name) for name in NINE} | {
    "python": python,
    "formula": formula,
    "shell": shell,
}


def default(answer: str, line: Mapping[str, Any]) -> float:
    """No line's: each names one of VERIFIERS."""
    raise NotImplementedError


for verifier in (*VERIFIERS.values(), default):
    verifier.executes = True  # type: ignore[attr-defined]


def reused(answer: str, line: Mapping[str, Any]) -> float:
    """The same scorer of honest answers, by one that says nothing: what a verdict costs in a
    process that judges many."""
    return VERIFIERS["countdown"](answer, line)
