"""A judge on a server scores the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from asyncrl.tasks.answer import Answer
from asyncrl.tasks.judge_request import request_of
from asyncrl.tasks.verifiers import BuiltIn


class AskedJudge(BuiltIn):
    """The request to a judge on a server, which gives the reward (`asyncrl.judges`). An answer of
    the line is not needed.

    >>> AskedJudge()(Answer("5"), {"prompt": "2 + 2 =", "answer": 4}).expected
    '4'
    """

    kind: ClassVar[str] = "judge"

    def __call__(self, answer: str, line: Mapping[str, Any]) -> Any:
        return request_of(Answer.of(answer), line)

    def check(self, line: Mapping[str, Any]) -> None:
        """Check nothing: a judge reads what a line has."""
