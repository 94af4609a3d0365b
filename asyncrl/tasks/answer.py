"""The text of a response, as its verifier gets it."""

from __future__ import annotations

from typing import Self

from asyncrl.messages import Finish


class Answer(str):
    """The text of a response, and how it ended. It is a text like any other, so a verifier may
    ignore the rest.

    `finish` is `stop` if the model ended it, `length` if it was cut at its budget of tokens, and
    empty if that is not known. `tokens` are the response's, its end included; 0 if that is not
    known.

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
        """Make an answer of a text, which may be one already."""
        return text if isinstance(text, cls) else cls(text)
