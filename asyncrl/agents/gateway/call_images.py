"""Images of agents' calls: decoded once, kept by their hashes, and numbered for an attempt.
Invariant: the ids of an attempt name an image by one number, whichever call shows it.

Between a request and its ids there is one text, the *shown text*: what the chat template made, with
the hash of its image behind each placeholder. So texts that differ in an image alone differ, and
what is known of a text's tokens is known of its images too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from asyncrl.agents.gateway.errors import GatewayError, bad
from asyncrl.tasks import TaskError
from asyncrl.tasks.images.image_decoder import decoded_image
from asyncrl.tasks.images.image_source import IMAGE_BYTES, IMAGES, ImageSource
from asyncrl.tasks.images.kept_images import ImagesFull, KeptImages
from asyncrl.tasks.images.pixels import written_png
from asyncrl.tasks.images.vision_model import VisionModel

ATTEMPT, ATTEMPT_BYTES = 1024, 2**29
"""The most different images of an attempt, and the most bytes of them as they are kept."""
REMEMBERED = 4096
"""Encoded images whose hashes are remembered, because agents resend a history with each call."""
_HASH = 64
"""Characters in a hash."""


class AttemptImages:
    """The images of one attempt, numbered.

    >>> images = AttemptImages()
    >>> images.add("a", 9), images.add("b", 9), images.add("a", 9)
    (0, 1, 0)
    """

    def __init__(self) -> None:
        self._numbers = dict[str, int]()
        self._bytes = 0

    @property
    def table(self) -> list[str]:
        """The hashes, by their numbers."""
        return [*self._numbers]

    def number(self, name: str) -> int:
        """The number of an image that has been added."""
        return self._numbers[name]

    def add(self, name: str, size: int) -> int:
        """The number of an image of so many bytes. Raises GatewayError (400) for too many."""
        if name not in self._numbers:
            if len(self._numbers) >= ATTEMPT or self._bytes + size > ATTEMPT_BYTES:
                raise bad(
                    f"an attempt may show {ATTEMPT} different images, of {ATTEMPT_BYTES:,} bytes "
                    "in all",
                    "messages",
                    "too_many_images",
                )
            self._numbers[name] = len(self._numbers)
            self._bytes += size
        return self._numbers[name]


class CallImages:
    """The images in all calls of one actor, for a model that reads images. `placeholder` is the
    text of the token that stands for an image."""

    def __init__(self, store: KeptImages, model: VisionModel, placeholder: str) -> None:
        self._store, self._model, self._placeholder = store, model, placeholder
        self._known = OrderedDict[bytes, tuple[str, int]]()
        self._tokens = OrderedDict[str, int]()
        self._urls = OrderedDict[str, tuple[str, int]]()
        self.decoded = 0
        """Images that were decoded."""

    def named(self, messages: Sequence[Mapping[str, Any]]) -> list[ImageSource]:
        """The images of messages that are to be fetched. Raises GatewayError for too many."""
        found = [part["image"] for part in _images(messages)]
        _refuse_many(found)
        absent = [one for one in found if one.url and one.url not in self._urls]
        return list(dict.fromkeys(absent))

    def kept(
        self,
        messages: Sequence[Mapping[str, Any]],
        attempt: AttemptImages,
        fetched: Mapping[str, bytes] = {},
    ) -> list[dict[str, Any]]:
        """The messages, with hashes in place of their images, which are kept; `fetched` has the
        bytes of those that were `named`, by their URLs. Raises GatewayError for an image that
        cannot be read, and for too many."""
        _refuse_many([part["image"] for part in _images(messages)], fetched)

        def part_of(part: Mapping[str, Any]) -> dict[str, Any]:
            if part["type"] != "image":
                return dict(part)
            source = part["image"]
            keep = partial(self._keep_fetched, source.url, fetched)
            name, size = keep() if source.url else self._keep(source.data)
            attempt.add(name, size)
            return {"type": "image", "image": name}

        return [
            {**message, "content": [part_of(part) for part in message["content"]]}
            if isinstance(message["content"], list)
            else dict(message)
            for message in messages
        ]

    def shown(self, text: str, messages: Sequence[Mapping[str, Any]]) -> str:
        """The shown text of messages, of which the chat template made `text`. Raises GatewayError
        (400) if it has another number of placeholders."""
        names = [part["image"] for part in _images(messages)]
        first, *rest = text.split(self._placeholder)
        if len(rest) != len(names):
            raise bad(
                f"the chat template made {len(rest)} places for {len(names)} images: it may "
                "not support images in this message, or a text contains their token",
                "messages",
            )
        places = (self._placeholder + name + piece for name, piece in zip(names, rest, strict=True))
        return first + "".join(places)

    def plain(self, shown: str) -> tuple[str, list[str]]:
        """The text of a shown text that is tokenized, and its images."""
        first, *rest = shown.split(self._placeholder)
        pieces = [piece[_HASH:] for piece in rest]
        return self._placeholder.join([first, *pieces]), [piece[:_HASH] for piece in rest]

    def numbered(
        self, ids: Sequence[int], names: Sequence[str], attempt: AttemptImages
    ) -> list[int]:
        """Ids of a plain text, in which the parts of each image are `-1 - n` for its number `n` in
        the attempt. Raises GatewayError (400) if they have another number of images."""
        places = [at for at, one in enumerate(ids) if one == self._model.token]
        if len(places) != len(names):
            raise bad(f"{len(names)} images have {len(places)} tokens in the text", "messages")
        found, at = list[int](), 0
        for place, name in zip(places, names, strict=True):
            found += ids[at:place]
            found += [-1 - attempt.number(name)] * self._tokens_of(name)
            at = place + 1
        return [*found, *ids[at:]]

    def sampled_one(self, ids: Sequence[int]) -> bool:
        """True if sampled ids have a placeholder, whose text no request may contain."""
        return self._model.token in ids

    def _keep_fetched(self, url: str, fetched: Mapping[str, bytes]) -> tuple[str, int]:
        """Keep an image that was fetched: what its URL gave first is what it is. Raises
        GatewayError."""
        if (known := self._urls.get(url)) is not None:
            self._urls.move_to_end(url)
            return known
        kept = self._keep(fetched[url])
        _remember(self._urls, url, kept)
        return kept

    def _keep(self, data: bytes) -> tuple[str, int]:
        """Keep an encoded image. Returns its hash, and its bytes as it is kept. Raises
        GatewayError."""
        digest = sha256(data).digest()
        if digest in self._known:
            self._known.move_to_end(digest)
            return self._known[digest]
        try:
            pixels = decoded_image(data)
            tokens = self._model.tokens(pixels)
            png = written_png(pixels)
            name = self._store.keep(png)
        except ImagesFull as error:
            raise GatewayError(507, "images_full", f"an image cannot be kept: {error}") from error
        except (LookupError, TaskError) as error:
            raise bad(f"an image cannot be read: {error}", "messages", "invalid_image") from error
        except OSError as error:
            raise GatewayError(
                503, "not_kept", f"an image cannot be kept: {error.strerror}", retry_s=1
            ) from error
        self.decoded += 1
        _remember(self._tokens, name, tokens)
        _remember(self._known, digest, (name, len(png)))
        return name, len(png)

    def _tokens_of(self, name: str) -> int:
        if name not in self._tokens:  # of a long history
            _remember(self._tokens, name, self._model.tokens(self._store.pixels(name)))
        return self._tokens[name]


def bare(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as chat templates know it: an image is a part of that type alone.

    >>> bare({"role": "user", "content": [{"type": "image", "image": "ab"}]})["content"]
    [{'type': 'image'}]
    """
    content = message["content"]
    if not isinstance(content, list):
        return message
    parts = [{"type": "image"} if part["type"] == "image" else part for part in content]
    return {**message, "content": parts}


def _refuse_many(
    found: Sequence[ImageSource],
    fetched: Mapping[str, bytes] = {},
) -> None:
    """Check the number of a call's images, and their bytes. Raises GatewayError (400)."""
    size = sum(len(one.data) for one in found) + sum(map(len, fetched.values()))
    if len(found) > IMAGES or size > IMAGE_BYTES:
        raise bad(
            f"a call may have {IMAGES} images, of {IMAGE_BYTES:,} bytes in all; it has "
            f"{len(found)}",
            "messages",
            "too_many_images",
        )


def _images(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The parts of messages that are images, in order."""
    for message in messages:
        if isinstance(message["content"], list):
            yield from (part for part in message["content"] if part["type"] == "image")


def _remember(known: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    known[key] = value
    while len(known) > REMEMBERED:
        known.popitem(last=False)
