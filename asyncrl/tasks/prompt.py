"""The prompt of a task, in the three forms in which data has it: a text, a conversation, or ids."""

from __future__ import annotations

from typing import Any

import msgspec

from asyncrl.tasks.images.image_source import ImageSource

Messages = list[dict[str, Any]]
"""Messages of a conversation: objects with `role` and `content`, and what else templates read."""


class ChatPrompt(msgspec.Struct, frozen=True):
    """A conversation that the model continues. `text` is all of it as one text, for a model without
    a chat template; `tools` are descriptions of functions, as chat templates take them. `images`
    are those of the parts `{"type": "image"}` of its contents, in their order, with paths in full.

    >>> ChatPrompt([{"role": "user", "content": "1 + 1?"}], "1 + 1?\\n").text
    '1 + 1?\\n'
    """

    messages: Messages
    text: str
    tools: Messages = []
    images: list[ImageSource] = []


Prompt = str | ChatPrompt | list[int]
"""A text, a conversation, or the ids themselves."""


def text_of(prompt: Prompt) -> str:
    """A prompt as one text; empty if it is ids.

    >>> text_of("1 + 1?"), text_of([5, 6])
    ('1 + 1?', '')
    """
    if isinstance(prompt, ChatPrompt):
        return prompt.text
    return prompt if isinstance(prompt, str) else ""
