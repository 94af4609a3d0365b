"""The one form in which images are kept: a PNG that this module wrote. Invariant: equal pixels of
one release of zlib are equal bytes, and nothing is read but what is written here.

Every browser shows it, and no decoder of a stranger's bytes is needed to read it: rows of RGB
without filters, in one stream of zlib.
"""

from __future__ import annotations

import hashlib
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

PIXELS = 2**24
"""Pixels of an image, at most."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEAD = struct.Struct(">II5B")
_RGB = (8, 2, 0, 0, 0)
"""Eight bits a colour, of three colours, as PNG has it; no interlacing."""

Pixels = NDArray[np.uint8]
"""An image: [height, width, 3], red, green and blue."""


def written_png(pixels: Pixels) -> bytes:
    """The PNG of an image.

    >>> pixels_of(written_png(np.full((2, 3, 3), 7, np.uint8))).shape
    (2, 3, 3)
    """
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    chunks = [
        (b"IHDR", _HEAD.pack(width, height, *_RGB)),
        (b"IDAT", zlib.compress(rows.tobytes(), 1)),
        (b"IEND", b""),
    ]
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def pixels_of(png: bytes) -> Pixels:
    """The image of a PNG that `written_png` wrote. Raises ValueError for any other."""
    (length,) = struct.unpack(">I", png[33:37]) if len(png) >= 57 else (0,)
    if png[:8] != _SIGNATURE or png[12:16] != b"IHDR" or len(png) != 57 + length:
        raise ValueError("it is no image of a run")
    width, height, *form = _HEAD.unpack(png[16:29])
    if tuple(form) != _RGB or not 0 < width * height <= PIXELS:
        raise ValueError("it is no image of a run")
    size = height * (1 + 3 * width)
    unpacked = zlib.decompressobj()
    try:
        data = unpacked.decompress(png[41 : 41 + length], size)
    except zlib.error as error:
        raise ValueError("it is no image of a run") from error
    if len(data) != size or not unpacked.eof:
        raise ValueError("it is no image of a run")
    rows = np.frombuffer(data, np.uint8).reshape(height, 1 + 3 * width)
    if rows[:, 0].any():
        raise ValueError("it is no image of a run")
    return np.ascontiguousarray(rows[:, 1:]).reshape(height, width, 3)


def image_hash(png: bytes) -> str:
    """The name of an image everywhere: the sha256 of its bytes, in hexadecimal."""
    return hashlib.sha256(png).hexdigest()
