"""The text of a response, as its verifier gets it."""

from __future__ import annotations

from typing import Self

from asyncrl.messages import Finish
from asyncrl.tasks.prompt import Messages


class Answer(str):
    """The text of a response without its special tokens, and how it ended. It is a text like any
    other, so a verifier may ignore the rest.

    `finish` is `stop` if the model ended it, `length` if it was cut at its budget of tokens, and
    empty if that is not known. `tokens` are the response's, its end included; 0 if that is not
    known. `text_special` is the text with the names of its special tokens, but for the one that
    ended it. `prompt` is what the model continued, with its template and special tokens; empty if
    that is not known. `messages` is the conversation that it was made of, if it was one.

    >>> answer = Answer("12", finish="length", tokens=3, text_special="1</think>2")
    >>> answer == "12", answer.finish, answer.text_special.partition("</think>")[2]
    (True, 'length', '2')
    >>> Answer("42").text_special
    '42'
    """

    finish: Finish
    tokens: int
    text_special: str
    prompt: str
    messages: Messages

    def __new__(
        cls,
        text: str,
        *,
        finish: Finish = "",
        tokens: int = 0,
        text_special: str | None = None,
        prompt: str = "",
    ) -> Self:
        self = super().__new__(cls, text)
        self.finish, self.tokens = finish, tokens
        self.text_special = str(text) if text_special is None else text_special
        self.prompt, self.messages = prompt, []
        return self

    def behind(self, messages: Messages) -> Answer:
        """The same answer, to this conversation."""
        same = Answer(self)
        same.__dict__ |= self.__dict__ | {"messages": messages}
        return same

    @classmethod
    def of(cls, text: str) -> Answer:
        """Make an answer of a text, which may be one already."""
        return text if isinstance(text, cls) else cls(text)
