"""A chat template in a process of its own, within the bounds of `foreign_process`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from asyncrl.tasks.foreign_process import CallFailed, ForeignProcess, error_line

CHARACTERS = 2**24
"""Characters of a rendered conversation, at most."""

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]


class TemplateProcess(ForeignProcess):
    """Calls of a function that renders a conversation with tools.

    >>> process = TemplateProcess(lambda messages, tools: messages[0]["content"].upper())
    >>> process.render([{"role": "user", "content": "1 + 1 is?"}], ())
    '1 + 1 IS?'
    """

    def __init__(self, render: Render) -> None:
        super().__init__(partial(_rendered, render))

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> str:
        """A conversation as the function renders it. Raises CallFailed."""
        try:
            asked = json.dumps([list(messages), list(tools)]).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise CallFailed(error_line(error)) from error
        return self.call(asked).decode()


def _rendered(render: Render, asked: bytes) -> bytes:
    """The text of a conversation, in the process of the template. Raises what that raises, and
    ValueError for a text that cannot be sent."""
    text = render(*json.loads(asked))
    if len(text) > CHARACTERS:
        raise ValueError(f"it gives more than {CHARACTERS:,} characters")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            "the text has half of a surrogate pair, which is not a character"
        ) from None
