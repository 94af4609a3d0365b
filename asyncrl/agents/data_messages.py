"""The conversation of a prompt with images, as clients of OpenAI's chat send it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncrl.tasks.images.image_decoder import image_bytes
from asyncrl.tasks.images.image_source import ImageSource, data_url
from asyncrl.tasks.prompt import ChatPrompt, Prompt


def messages_with_images(
    prompt: Prompt, bytes_of: Callable[[ImageSource], bytes] = image_bytes
) -> list[dict[str, Any]]:
    """The messages of a prompt, its images as data URLs; none if it has no image. Raises
    LookupError for one that cannot be read.

    >>> content = [{"type": "image"}, {"type": "text", "text": "Which?"}]
    >>> asked = [{"role": "user", "content": content}]
    >>> asked = ChatPrompt(asked, "", images=[ImageSource(b"GIF89a")])
    >>> messages_with_images(asked)[0]["content"][0]
    {'type': 'image_url', 'image_url': {'url': 'data:image/gif;base64,R0lGODlh'}}
    """
    if not isinstance(prompt, ChatPrompt) or not prompt.images:
        return []
    images = iter(prompt.images)

    def part(one: dict[str, Any]) -> dict[str, Any]:
        if one["type"] != "image":
            return one
        return {"type": "image_url", "image_url": {"url": data_url(bytes_of(next(images)))}}

    return [
        {**message, "content": [part(one) for one in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in prompt.messages
    ]
