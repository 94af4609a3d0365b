"""Contents of messages, which dialects share: texts, and images. Invariant: an image is bytes here,
or a URL of a host that settings list; whether it can be fetched and decoded is found later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asyncrl.agents.gateway.dialects.parameters import where_of
from asyncrl.agents.gateway.errors import bad
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.tasks.images.image_source import ImageSource, beside, image_source

Content = str | list[dict[str, Any]]
"""A message's content for chat templates: a text, or, with images, parts of type `text`, and of
type `image` with its `ImageSource`."""
IMAGES = ("image_url", "input_image", "image")
"""Types of parts that are an image: OpenAI's in chat and in responses, and Anthropic's."""
REFUSAL = "refusal"
"""The type of OpenAI's parts of an answer in which a model refused: they are read as its text."""
SHOWN_BY = ("user", "tool")
"""Roles of messages that may have images."""


def text_blocks(content: Any, where: str, kinds: Sequence[str]) -> Iterator[str]:
    """The texts in a message's content, which is a text or a list of blocks of these kinds. Raises
    GatewayError (400)."""
    for block in _blocks(content, where):
        yield block if isinstance(block, str) else _text(block, where, kinds)


def content_of(
    content: Any, where: str, kinds: Sequence[str], role: str, settings: Settings
) -> Content:
    """A message's content, which is a text or a list of blocks: texts of these kinds, and images.
    Raises GatewayError (400)."""
    parts = list[dict[str, Any]]()
    for block in _blocks(content, where):
        if isinstance(block, Mapping) and block.get("type") in IMAGES:
            if settings.blind:
                raise bad(
                    f"{where}: a part of type {block['type']!r} cannot be read: {settings.blind}",
                    where_of(where),
                )
            if role not in SHOWN_BY:
                raise bad(f"{where}: images are a user's or a tool's", where_of(where))
            parts.append({"type": "image", "image": _image(block, where, settings.image_hosts)})
        else:
            text = block if isinstance(block, str) else _text(block, where, kinds)
            parts.append({"type": "text", "text": text})
    return joined(parts)


def joined(parts: list[dict[str, Any]]) -> Content:
    """Parts as a content: one text where none is an image.

    >>> joined([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    'ab'
    """
    if any(part["type"] == "image" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def parts_of(content: Content) -> list[dict[str, Any]]:
    """A content as parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _blocks(content: Any, where: str) -> Sequence[Any]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise bad(f"{where}: content must be a text or a list of parts", where_of(where))
    return content


def _text(block: Any, where: str, kinds: Sequence[str]) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind not in kinds:
        raise bad(
            f"{where}: a part of type {kind!r} cannot be read: it is no text here", where_of(where)
        )
    text = block.get("refusal" if kind == REFUSAL else "text")
    if not isinstance(text, str):
        raise bad(f"{where}: a part of type {kind!r} must have a text", where_of(where))
    return text


def _image(block: Mapping[str, Any], where: str, hosts: Sequence[str]) -> ImageSource:
    """The image of a part that is one: its encoded bytes, or its URL. Raises GatewayError (400)."""
    if block["type"] == "image":
        source: Any = block.get("source")
        source = source if isinstance(source, Mapping) else {}
        data, url = source.get("data"), source.get("url")
        if source.get("type") == "base64" and isinstance(data, str):
            url = f"data:image/any;base64,{data}"
        elif source.get("type") != "url":
            url = None
        wanted = "a source of type base64, with its data"
    else:
        given: Any = block.get("image_url")
        url = given.get("url") if isinstance(given, Mapping) else given
        wanted = "a data URL (data:image/png;base64,…)"
    known = isinstance(url, str) and url.lower().startswith(("data:", "https:", "http:"))
    try:
        found = beside(None, image_source(url), hosts) if known else None
    except LookupError as error:
        raise bad(f"{where}: {error}", where_of(where), "invalid_image") from error
    if found is None:
        raise bad(
            f"{where}: an image must be {wanted}, or a URL of a host in task.image_hosts",
            where_of(where),
            "invalid_image",
        )
    return found
