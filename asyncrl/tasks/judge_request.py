"""An answer that a judge on a server is to score. The verifier `judge` makes it of an answer and
its line, in a process without a network; the reward actor asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from asyncrl.tasks.answer import Answer

TEXT_BYTES = 2**20
"""Bytes of the texts of a request, at most: some 250,000 tokens."""
TOO_LONG = f"too long for the judge: over {TEXT_BYTES:,} bytes"
"""The reason of answers whose texts it is not sent."""


class JudgeRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The texts that a judge reads; `expected` is the line's own answer, and may be empty. If
    `exact`, the answer is worth 1 at the best score, and else 0.

    >>> JudgeRequest("2 + 2 =", "5", "4").exact
    False
    """

    question: str
    answer: str
    expected: str
    exact: bool = False


class GroupRequest(msgspec.Struct, frozen=True):
    """The answers of a group, which a judge compares; all are answers to one question.

    >>> GroupRequest((JudgeRequest("q", "5", ""), JudgeRequest("q", "6", ""),
    ...               JudgeRequest("q", "5", ""))).distinct
    ['5', '6']
    """

    members: tuple[JudgeRequest, ...]

    @property
    def distinct(self) -> list[str]:
        """Its answers, each text once, in the order of members: equal ones have one verdict."""
        return list(dict.fromkeys(member.answer for member in self.members))


def request_of(answer: Answer, entry: Mapping[str, Any]) -> JudgeRequest:
    """The request for an answer to a line.

    >>> request_of(Answer("5"), {"prompt": "2 + 2 =", "answer": 4})
    JudgeRequest(question='2 + 2 =', answer='5', expected='4', exact=False)
    """
    question = entry.get("prompt")
    expected = entry.get("answer")
    return JudgeRequest(
        question if isinstance(question, str) else answer.prompt,
        str(answer),
        "" if expected is None else str(expected),
    )
