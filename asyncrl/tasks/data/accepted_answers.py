"""Rows of which several answers are right: a list, any of which a response may give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.tasks.answer import Answer
from asyncrl.tasks.verifiers import BuiltIn
from asyncrl.tasks.verifiers.judge import AskedJudge


def accepted(answer: Any) -> list[Any]:
    """The right answers of a row; none where it has an object, or a list of other things.

    >>> accepted("4"), accepted(["four", 4]), accepted({"value": "4"}), accepted([["4"]])
    (['4'], ['four', 4], [], [])
    """
    answers = answer if isinstance(answer, list) else [answer]
    return answers if all(isinstance(one, str | int | float) for one in answers) else []


def verified(verifier: BuiltIn, answer: Answer, line: Mapping[str, Any]) -> Any:
    """The reward that a built-in verifier gives a response: the most that it gives for any of the
    right answers. A judge on a server reads them all.

    >>> from asyncrl.tasks.verifiers.exact import Exact
    >>> [verified(Exact(), Answer(text), {"answer": ["four", 4]}) for text in ("4", "five")]
    [1.0, 0.0]
    """
    answers = line.get("answer")
    if not isinstance(answers, list) or not verifier.compares:
        return verifier(answer, line)
    if isinstance(verifier, AskedJudge):
        return verifier(answer, {**line, "answer": " or ".join(map(str, answers))})
    return max(verifier(answer, {**line, "answer": one}) for one in answers)
