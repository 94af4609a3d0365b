"""The response's final answer is mathematically the expected one, by the package math-verify."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
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
        library = _library()
        # its own timeouts are signals, which a thread does not get; task.verdict_s ends a process
        gold = library.parse(_in_box(expected), parsing_timeout=None)
        given = library.parse(part if found is None else _in_box(part), parsing_timeout=None)
        return float(library.verify(gold, given, timeout_seconds=None))

    def check(self, line: Mapping[str, Any]) -> None:
        super().check(line)
        if not str(line["answer"]).strip():
            raise LookupError("its verifier is `math`, and its answer is empty")
        _library()


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
    return math_verify
