"""The text of a response, as a verifier is given it."""

from __future__ import annotations

from typing import Self

from asyncrl.messages import Finish


class Answer(str):
    """The text of a response, and how it ended. It is a text like any other: a verifier that looks
    at nothing else takes it as one.

    `finish` is `stop` where the model ended it, `length` where it was cut at its budget of tokens,
    and empty where that is not known. `tokens` are the response's, its end included; 0 where that
    is not known.

    >>> answer = Answer("42", finish="length", tokens=3)
    >>> answer == "42", answer.finish, answer.tokens
    (True, 'length', 3)
    """

    finish: Finish
    tokens: int

    def __new__(cls, text: str, *, finish: Finish = "", tokens: int = 0) -> Self:
        self = super().__new__(cls, text)
        self.finish, self.tokens = finish, tokens
        return self

    @classmethod
    def of(cls, text: str) -> Answer:
        """The text as an answer, which it may be already."""
        return text if isinstance(text, cls) else cls(text)
