"""The last box of the response, `\\boxed{…}`, has the expected answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from asyncrl.tasks.final_answers import last_boxed, same_final, spoken
from asyncrl.tasks.verifiers import BuiltIn


class Boxed(BuiltIn):
    """1 if what the last whole box holds is the expected answer, as a number or as a text in which
    the ways to typeset one thing are one (`same_final`).

    >>> Boxed()(r"So \\boxed{\\tfrac{1}{2}}.", {"answer": "1/2"}), Boxed()("1/2", {"answer": "1/2"})
    (1.0, 0.0)
    """

    kind: ClassVar[str] = "boxed"

    def __call__(self, answer: str, line: Mapping[str, Any]) -> float:
        found = last_boxed(spoken(answer))
        return float(found is not None and same_final(found, line["answer"]))
