"""Decodes what a stranger wrote, by Pillow, in a process that is confined. Invariant: an image that
cannot be decoded within the bounds is a sentence, and harms nothing.

The process (`foreign_process.py`) opens no file, and has seconds and memory. It returns pixels and
no file format, so that what is kept of an image was written by this project alone (`pixels.py`).
"""

from __future__ import annotations

import io
import os
import struct
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.config.errors import installs
from asyncrl.escape import escaped
from asyncrl.files import read_regular
from asyncrl.tasks.foreign_process import CallFailed, ForeignProcess
from asyncrl.tasks.images.fetching import fetched
from asyncrl.tasks.images.image_source import IMAGE_BYTES, ImageSource
from asyncrl.tasks.images.pixels import PIXELS, Pixels

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that are decoded."""
ENDS = 16
"""Processes that images may cost, before none is decoded any more."""
_SIZE = struct.Struct("<II")


def decoded_image(data: bytes, name: str = "") -> Pixels:
    """The pixels of an encoded image, as a viewer shows it: turned as its EXIF says, its first
    frame, in RGB, on white where it is transparent. Raises LookupError, with the reason as the end
    of a sentence that has its `name`."""
    said = f"its image {escaped(name, 200)} cannot" if name else "its image cannot"
    try:
        answer = _decoder().call(data)
    except CallFailed as error:
        raise LookupError(f"{said} be decoded: {error}") from error
    width, height = _SIZE.unpack_from(answer)
    pixels = np.frombuffer(answer, np.uint8, offset=_SIZE.size)
    if len(pixels) != 3 * width * height or not 0 < width * height <= PIXELS:
        raise LookupError(f"{said} be decoded: its decoder gave no pixels")
    return pixels.reshape(height, width, 3)


def image_bytes(source: ImageSource) -> bytes:
    """The encoded bytes of an image of a prompt, whose path is in full. Raises LookupError."""
    if source.data:
        return source.data
    if source.url:
        return fetched(source.url, source.hosts)
    try:
        folder = os.path.realpath(source.folder)
        if not Path(os.path.realpath(source.path)).is_relative_to(folder):
            raise LookupError(
                f"its image {escaped(source.path, 200)} is a link out of the folder of the data: "
                "copy the files there (cp -rL), or put the data file beside them"
            )
        return read_regular(Path(source.path), IMAGE_BYTES)
    except OSError as error:
        raise LookupError(
            f"its image {escaped(source.path, 200)} cannot be read: {error.strerror}"
        ) from error


@cache
def _decoder() -> ForeignProcess:
    try:
        _import_formats()
    except ModuleNotFoundError as error:
        raise LookupError(
            f"it has an image, and Pillow is not installed: {installs('vision')}"
        ) from error
    return ForeignProcess(_decode, confined=True, ends=ENDS)


def _import_formats() -> None:
    """Import what decoding needs, which a confined process cannot: by decoding images of our own
    making."""
    from PIL import Image

    exif = Image.Exif()
    exif[274] = 6  # turned
    for name in FORMATS:
        encoded = io.BytesIO()
        Image.new("RGB", (2, 3)).save(encoded, name, **({"exif": exif} if name == "JPEG" else {}))
        _decode(encoded.getvalue())
    for mode in ("RGBA", "I;16", "P"):
        encoded = io.BytesIO()
        Image.new(mode, (2, 3)).save(encoded, "PNG")
        _decode(encoded.getvalue())


def _decode(data: bytes) -> bytes:
    """Width, height and pixels, in the process of the decoder. Raises what Pillow does, and
    ValueError."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    # sizes are bounded below
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    try:
        opened = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"it is none of {', '.join(FORMATS)}, or damaged") from None
    with opened as image:
        width, height = image.size
        if width * height > PIXELS:
            raise ValueError(f"it has {width} × {height} pixels, and {PIXELS:,} at most")
        image.seek(0)
        shown: Any = ImageOps.exif_transpose(image)
        if "transparency" in shown.info or shown.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
            shown = shown.convert("RGBA")
            white = Image.new("RGBA", shown.size, "white")
            shown = Image.alpha_composite(white, shown)
        elif shown.mode.startswith(("I", "F")):
            shown = _grey(shown)
        rgb = shown.convert("RGB")
        pixels: bytes = rgb.tobytes()
        return _SIZE.pack(*rgb.size) + pixels


def _grey(image: Any) -> Any:
    """An image of 16 or 32 bits in 8: Pillow would cut larger numbers off. Fractions are parts of
    white. Raises ValueError for infinite numbers, and for what is none."""
    from PIL import Image

    values = np.asarray(image, np.float64)
    if not np.isfinite(values).all():
        raise ValueError("it has colours that are no finite numbers")
    most = float(values.max()) if values.size else 0.0
    white = 65535.0 if 255 < most <= 65535 else max(most, 255.0)
    if image.mode.startswith("F") and most <= 1:
        white = 1.0
    return Image.fromarray((values.clip(0, None) * (255.0 / white)).astype(np.uint8))
