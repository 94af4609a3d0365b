"""Images as data has them: a path beside the data file, bytes, base64, or a URL. Pure. Invariant: a
URL is of a host that the settings list, and no path leads out of the folder of its data file."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import msgspec

from asyncrl.escape import escaped, quoted

IMAGE_BYTES = 2**24
"""Bytes of an encoded image, at most."""
URL_CHARACTERS = 4096
"""Characters of a URL, at most."""
PORTS = {"https": 443, "http": 80}
"""Ports of the schemes in which images are fetched."""
IMAGES = 16
"""Images of a prompt, at most."""
COLUMNS = ("images", "image")
"""Keys of a row that may have the images of its prompt."""
MAPPED = ("bytes", "url", "image", "path")
"""Keys of a mapping that may have an image, in this order."""
SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jfif", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".svg", ".pdf", ".ico", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".ppm", ".tga", ".psd"),
)
"""Ends of names that are files of images, also of those that are not decoded."""
_DATA = re.compile(r"data:[\w.+-]*/?[\w.+-]*(;[\w.+-]+=[^;,]*)*;base64,", re.IGNORECASE)
_KNOWN = re.compile(r"data:|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
"""Begin of a text that is an image, and no name of a container's."""
_BASE64 = re.compile(r"(iVBORw0KGgo|/9j/|R0lGOD|UklGR|SUkqA|TU0AK)[\w+/=\s]{40,}")
"""Base64 of the first bytes of PNG, JPEG, GIF, WebP and TIFF, and what follows."""
_CONTAINER = re.compile(r"[a-z0-9][\w./:@-]*")
"""A name of a container's image."""
_URL = re.compile(r"https?://", re.IGNORECASE)
_NAMES = re.compile("image|img|photo|picture|screen", re.IGNORECASE)
"""Keys of a row that may have an image."""


class ImageSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image of a row: its encoded `data`, the `path` of its file, relative to the folder of the
    data file, or the `url` from which it is fetched. In a prompt the path is in full, `folder` is
    what its file must be in, and `hosts` are those that may be asked.

    >>> ImageSource(path="screens/7.png").data
    b''
    """

    data: bytes = b""
    path: str = ""
    url: str = ""
    folder: str = ""
    hosts: tuple[str, ...] = ()


def image_source(value: Any) -> ImageSource:
    """The image that a value is. Raises LookupError, with the reason as the end of a sentence.

    >>> image_source("screens/7.png").path, image_source({"bytes": b"GIF89a", "path": None}).data
    ('screens/7.png', b'GIF89a')
    >>> image_source("/etc/7.png")
    Traceback (most recent call last):
    LookupError: its image '/etc/7.png' is not beside the data: give a path that is relative to \
the folder of the data file, and stays in it
    """
    if isinstance(value, Mapping):
        found = [value.get(key) for key in MAPPED]
        value = next((one for one in found if one is not None), None)
    if isinstance(value, bytes):
        if not value:
            raise LookupError("its image is empty: it has no bytes")
        if len(value) > IMAGE_BYTES:
            raise LookupError(f"its image has {len(value):,} bytes, and {IMAGE_BYTES:,} at most")
        return ImageSource(value)
    if not isinstance(value, str) or not value:
        raise LookupError("its image is no path, no bytes and no data URL")
    if opened := _DATA.match(value):
        return image_source(_decoded(value[opened.end() :]))
    if _BASE64.fullmatch(value):
        return image_source(_decoded(value))
    if _URL.match(value):
        if len(value) > URL_CHARACTERS:
            raise LookupError(f"its image is a URL of more than {URL_CHARACTERS:,} characters")
        return ImageSource(url=value)
    return ImageSource(path=_path(value))


def _path(value: str) -> str:
    """The path that a text is. Raises LookupError."""
    path = PurePosixPath(value)
    if value.lower().startswith(("data:", "file:")) or "\0" in value:
        raise LookupError("its image is no path, no bytes and no data URL in base64")
    if _KNOWN.match(value):
        raise LookupError(f"its image {quoted(value, 80)} is a URL, but not of http or https")
    if len(value) > 1024:
        raise LookupError("its image is a path of more than 1,024 characters")
    if "\\" in value:
        raise LookupError(f"its image {quoted(value, 80)} has backslashes: write / instead")
    if path.is_absolute() or ".." in path.parts:
        raise LookupError(
            f"its image {quoted(value, 80)} is not beside the data: give a path that is "
            "relative to the folder of the data file, and stays in it"
        )
    return value


def origin_of(url: str) -> tuple[str, str, int]:
    """The scheme, host and port of a URL, or of a host that settings list (of https, if no scheme
    is given). Raises ValueError for what is none, and for one with a password.

    >>> origin_of("https://Example.org/7.png?x"), origin_of("http://10.0.0.5:8000")
    (('https', 'example.org', 443), ('http', '10.0.0.5', 8000))
    """
    parts = urlsplit(url if "://" in url else f"https://{url}")
    scheme, host = parts.scheme.lower(), parts.hostname or ""
    if scheme not in PORTS or not host or "@" in parts.netloc:
        raise ValueError("it is no host of http or https")
    return scheme, host, parts.port or PORTS[scheme]


def is_listed(url: str, hosts: Sequence[str]) -> bool:
    """True if settings list the host of a URL.

    >>> is_listed("https://example.org/7.png", ["example.org"])
    True
    >>> is_listed("http://example.org/7.png", ["example.org"])
    False
    """
    try:
        return origin_of(url) in map(origin_of, hosts)
    except ValueError:
        return False


_KINDS = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"GIF8": "gif", b"BM": "bmp", b"RIFF": "webp"}
"""First bytes of encoded images, and the names of their formats."""


def data_url(data: bytes) -> str:
    """An encoded image as a data URL.

    >>> data_url(b"GIF89a")
    'data:image/gif;base64,R0lGODlh'
    """
    kind = next((kind for first, kind in _KINDS.items() if data.startswith(first)), "tiff")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def beside(folder: Path | None, source: ImageSource, hosts: Sequence[str] = ()) -> ImageSource:
    """The image, with its path in full, or with the hosts that may be asked. Raises LookupError
    where the data has no folder, and for a URL of another host."""
    if source.data:
        return source
    if source.url:
        if not is_listed(source.url, hosts):
            raise LookupError(
                f"its image is the URL {escaped(source.url, 120)}, whose host is not in "
                "task.image_hosts: save the file beside the data, and give its path, or list the "
                "host there"
            )
        return msgspec.structs.replace(source, hosts=tuple(hosts))
    if folder is None:
        raise LookupError("its image is a path, and data of a hub has no files beside it")
    return ImageSource(path=str(folder / source.path), folder=str(folder))


def images_of(row: Mapping[str, Any]) -> list[ImageSource]:
    """The images in the columns `images` and `image` of a row; none where these are something
    else, as the name of a container's image. If one of a list is an image, all must be. Raises
    LookupError.

    >>> images_of({"image": "python:3.12"}), images_of({"images": ["a.png"]})[0].path
    ([], 'a.png')
    >>> images_of({"images": ["a.png", None]})
    Traceback (most recent call last):
    LookupError: its image is no path, no bytes and no data URL
    """
    for column in COLUMNS:
        value = row.get(column)
        if _has_one(value):
            values = value if isinstance(value, list) else [value]
            if len(values) > IMAGES:
                raise LookupError(f"it has {len(values)} images, and {IMAGES} at most")
            return [image_source(one) for one in values]
    return []


def is_not_shown(row: Mapping[str, Any]) -> bool:
    """True if a row has something that is not shown: in the columns `images` and `image` what is
    neither an image nor the name of a container's image, or images in both; where both are empty,
    an image in another column whose name says so.

    >>> is_not_shown({"image": "python:3.12"}), is_not_shown({"image": None, "images": []})
    (False, False)
    >>> is_not_shown({"image": 7}), is_not_shown({"images": "screen 7"})
    (True, True)
    >>> is_not_shown({"image_path": "7.png"}), is_not_shown({"image": "7.png", "images": "8.png"})
    (True, True)
    """
    if shown := sum(_has_one(row.get(column)) for column in COLUMNS):
        return shown > 1
    for column in COLUMNS:
        value = row.get(column)
        values = value if isinstance(value, list) else [value]
        named = isinstance(value, str) and _CONTAINER.fullmatch(value) is not None
        if any(one or one == 0 for one in values) and not (named and column == "image"):
            return True
    return any(_has_one(value) for key, value in row.items() if _NAMES.search(str(key)))


def _has_one(value: Any) -> bool:
    """True if a column has an image."""
    return any(map(_looks_like_one, value if isinstance(value, list) else [value]))


def _looks_like_one(value: Any) -> bool:
    found = map(value.get, MAPPED) if isinstance(value, Mapping) else (value,)
    return any(
        bool(_KNOWN.match(one) or _BASE64.fullmatch(one)) or one.lower().endswith(SUFFIXES)
        if isinstance(one, str)
        else isinstance(one, bytes)
        for one in found
    )


def _decoded(text: str) -> bytes:
    if len(text) > 5 * (IMAGE_BYTES // 3 + 1):
        raise LookupError(f"its image has more than {IMAGE_BYTES:,} bytes")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise LookupError(f"its image is no base64 ({error})") from error


def image_part(part: Any) -> Any:
    """The image of a part of a message: None where the part is something else, and an empty text
    where it is an image whose bytes are in a column of the row.

    >>> image_part({"type": "image"}), image_part({"type": "text", "text": "?"})
    ('', None)
    >>> image_part({"type": "image_url", "image_url": {"url": "a.png"}})
    {'url': 'a.png'}
    """
    kinds = ("image", "image_url", "input_image")
    if not isinstance(part, Mapping) or part.get("type") not in kinds:
        return None
    named = ("image", "image_url", "url", "bytes", "path")
    return next((part[key] for key in named if part.get(key) is not None), "")


def with_images(
    messages: Sequence[Mapping[str, Any]], column: Sequence[ImageSource]
) -> tuple[list[dict[str, Any]], list[ImageSource]]:
    """Messages whose images are parts `{"type": "image"}`, and these images in their order.
    `column` has those of the row: they stand where parts without an image of their own, or marks
    `<image>` in the user's texts, want one, or else before the user's first text. Raises
    LookupError where they do not match.

    >>> with_images([{"role": "user", "content": "Which?"}], [ImageSource(path="a.png")])[0]
    [{'role': 'user', 'content': [{'type': 'image'}, {'type': 'text', 'text': 'Which?'}]}]
    """
    left, images = list(column), list[ImageSource]()
    wanted = images_wanted(messages)
    marked = [dict(message) for message in messages]
    if column and not wanted:
        first = next(one for one in marked if one["role"] == "user")
        content = first["content"]
        texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        first["content"] = [*({"type": "image", "image": one} for one in column), *texts]
    elif wanted != len(column):
        raise LookupError(
            f"its messages want {wanted} image{'s' * (wanted != 1)}, and it has {len(column)}"
        )
    for message in marked:
        content = message["content"]
        if isinstance(content, str) and column and MARK in content and message["role"] == "user":
            content = _parts(content)
        if isinstance(content, str):
            continue
        parts = list[dict[str, Any]]()
        for part in content:
            if (given := image_part(part)) is None:
                parts.append(dict(part))
                continue
            if isinstance(given, ImageSource):
                images.append(given)
            else:
                images.append(left.pop(0) if given == "" else image_source(given))
            parts.append({"type": "image"})
        message["content"] = parts
    if len(images) > IMAGES:
        raise LookupError(f"it has {len(images)} images, and {IMAGES} at most")
    return marked, images


MARK = "<image>"
"""The place of an image in a text, as in LLaVA's data."""


def images_wanted(messages: Sequence[Mapping[str, Any]]) -> int:
    """The places in messages for images of a row's column: parts without an image of their own,
    and marks.

    >>> images_wanted([{"role": "user", "content": "<image> or <image>?"}])
    2
    """
    return sum(map(_wanted, messages))


def _wanted(message: Mapping[str, Any]) -> int:
    content = message["content"]
    if isinstance(content, str):
        return content.count(MARK) if message["role"] == "user" else 0
    return sum(image_part(part) == "" for part in content)


def _parts(text: str) -> list[dict[str, Any]]:
    pieces = list[dict[str, Any]]()
    for number, piece in enumerate(text.split(MARK)):
        pieces += [{"type": "image"}] * bool(number)
        pieces += [{"type": "text", "text": piece}] * bool(piece)
    return pieces
