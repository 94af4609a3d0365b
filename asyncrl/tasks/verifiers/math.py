"""The response's final answer is mathematically the expected one, by the package math-verify."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

from asyncrl.tasks.final_answers import last_boxed, same_final, spoken
from asyncrl.tasks.verifiers import BuiltIn

TAIL = 1000
"""Characters at the end of a response without a box in which its answer is looked for."""
EXPRESSION = 1000
"""Characters of the largest box that is computed with."""
_COSTLY = re.compile(r"[0-9]{60}|(?:\^|\*\*)[\s{(]*-?[0-9.,]{5}|(?:\^[^^]*){12}|[0-9]{4}\s*!|!\s*!")
"""Forms that nobody asks for and that take sympy minutes: numbers of 60 digits, powers of 10,000,
towers, factorials of thousands."""
_TOWER = re.compile(r"(?:\^|\*\*)[\s{(]*[0-9]+[\s})]*(?:\^|\*\*)")


class Math(BuiltIn):
    r"""1 if the answer in the last box, or at the end of a response without one, equals the
    expected one: numbers, expressions, sets, intervals, matrices, equations. What is written alike
    is right without a computation; what sympy would compute for minutes is wrong.

    >>> Math()(r"So $\boxed{\tfrac12}$.", {"answer": "1/2"})
    1.0
    """

    kind: ClassVar[str] = "math"
    package: ClassVar[str] = "math_verify"
    extra: ClassVar[str] = "math"

    def __call__(self, answer: str, line: Mapping[str, Any]) -> float:
        text, expected = spoken(answer), str(line["answer"])
        found = last_boxed(text)
        if found is not None and same_final(found, line["answer"]):
            return 1.0
        part = text[-TAIL:] if found is None else found
        if len(part) > EXPRESSION or _COSTLY.search(part) or _TOWER.search(part):
            return 0.0
        with _nothing_missing():
            return _compared(_library(), expected, part if found is None else _in_box(part))

    def check(self, line: Mapping[str, Any]) -> None:
        super().check(line)
        if not str(line["answer"]).strip():
            raise LookupError("its verifier is `math`, and its answer is empty")
        _library()


_WARM = (
    ("x^2+2x+1", "(x+1)^2"),
    (r"\frac{\sqrt{8}}{2}", r"\sqrt{2}"),
    (r"\{1, 2\}", r"\{2, 3\}"),
    ("[0, 1)", r"x \ge 2"),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \end{pmatrix}"),
    ("2x + y = 3", r"\sin(\pi/4)"),
)
"""Pairs whose comparison loads what nearly all do: at once, and not in each process that judges."""


def _compared(library: Any, expected: str, given: str) -> float:
    """1 if the package finds the two equal. Its own timeouts are signals, which a thread does not
    get; `task.verdict_s` ends a process."""
    gold = library.parse(_in_box(expected), parsing_timeout=None)
    found = library.parse(given, parsing_timeout=None)
    return float(library.verify(gold, found, timeout_seconds=None))


class _Unfound:
    """The last finder of modules: it finds none, and keeps their names."""

    def __init__(self) -> None:
        self.names = list[str]()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        self.names.append(name)


@contextmanager
def _nothing_missing() -> Iterator[None]:
    """Raise ImportError after a block in which a module of sympy was not found: the package takes
    that for a wrong answer, as where the sandbox does not show its folder."""
    unfound = _Unfound()
    sys.meta_path.append(unfound)
    try:
        yield
    finally:
        sys.meta_path.remove(unfound)
    if missing := [name for name in unfound.names if name.partition(".")[0] in _PARTS]:
        raise ImportError(
            f"{missing[0]} cannot be imported where answers are judged; install math-verify and "
            "sympy into the environment of asyncrl itself"
        )


_PARTS = {"sympy", "mpmath", "antlr4", "latex2sympy2_extended", "math_verify"}


def _in_box(text: str) -> str:
    """An expected answer so that the library reads the whole of it."""
    text = text.strip()
    return text if last_boxed(text) is not None else f"\\boxed{{{text.strip('$')}}}"


@cache
def _library() -> Any:
    """The package, which says nothing of answers that it cannot read."""
    import math_verify

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for expected, given in _WARM:
        _compared(math_verify, expected, _in_box(given))
    return math_verify
