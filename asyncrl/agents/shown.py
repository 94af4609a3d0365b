"""Texts with images for a model, by an environment or a function, as messages of OpenAI's chat.
Invariant: the gateway gets the image's own bytes, and decodes them.

    Shown("Where is the button?", [screen])     screen: a PIL image, encoded bytes, or a path
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.files import read_regular
from asyncrl.tasks.images.image_source import IMAGE_BYTES, data_url

LEFT_OUT = "(an earlier image)"
"""The text in place of an image that a history leaves out."""


class Shown(NamedTuple):
    """A text for the model, with images before it: each a PIL image, its encoded bytes (PNG, JPEG,
    …), or the path of its file."""

    text: str
    images: Sequence[Any] = ()


def user_message(shown: str | Shown) -> dict[str, Any]:
    """The user's message that shows a text, or an observation. Raises TypeError for an image that
    is none, and OSError for a file that cannot be read.

    >>> user_message("1 + 1?"), user_message(Shown("1 + 1?"))["content"]
    ({'role': 'user', 'content': '1 + 1?'}, '1 + 1?')
    >>> user_message(Shown("Where?", [b"GIF89a"]))["content"][0]
    {'type': 'image_url', 'image_url': {'url': 'data:image/gif;base64,R0lGODlh'}}
    """
    if isinstance(shown, str) or not shown.images:
        return {"role": "user", "content": shown if isinstance(shown, str) else shown.text}
    urls = [data_url(_encoded(image)) for image in shown.images]
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": u}} for u in urls]
    return {"role": "user", "content": [*parts, {"type": "text", "text": shown.text}]}


def newest_images(messages: Sequence[Mapping[str, Any]], most: int) -> list[dict[str, Any]]:
    """Messages with at most this many of the newest images (0 or more); a text replaces each of the
    others. A shortened history is another context, and so a branch.

    >>> history = [user_message(Shown(text, [b"GIF89a"])) for text in "ab"]
    >>> [part.get("text") for message in newest_images(history, 1) for part in message["content"]]
    ['(an earlier image)', 'a', None, 'b']
    """
    kept, left = list[dict[str, Any]](), most
    for message in reversed(messages):
        content = message["content"]
        if not isinstance(content, list):
            kept.append(dict(message))
            continue
        parts = list[Any]()
        for part in reversed(content):
            image = part["type"] == "image_url"
            parts.append({"type": "text", "text": LEFT_OUT} if image and not left else part)
            left -= image and left > 0
        kept.append({**message, "content": parts[::-1]})
    return kept[::-1]


def _encoded(image: Any) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | os.PathLike):
        return read_regular(Path(image), IMAGE_BYTES)
    if not hasattr(image, "save"):
        kind = type(image).__name__
        raise TypeError(f"an observation's image is a PIL image, bytes or a path, not {kind}")
    encoded = io.BytesIO()
    image.save(encoded, "PNG")
    return encoded.getvalue()
