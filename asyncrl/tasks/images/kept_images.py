"""The images of a run, `RUN/images/HASH`. Invariant: the bytes under a name have that hash, and a
name that is no hash names no file.

The coordinator keeps an image before the event that names it, so every image of a journal is there.
It is written once, however many prompts show it. All of them together are bounded: a prompt whose
image finds no room is not read.
"""

from __future__ import annotations

import re
from pathlib import Path

from asyncrl.files import read_regular, write_whole
from asyncrl.tasks import TaskError
from asyncrl.tasks.images.pixels import PIXELS, Pixels, image_hash, pixels_of

KEPT_BYTES = 4 * PIXELS
"""Bytes of a kept image, at most: three of a pixel, and what zlib adds to noise."""
_HASH = re.compile(r"[0-9a-f]{64}")


class ImagesFull(TaskError):
    """Raised where a run's images have no room for one more."""


class KeptImages:
    """The folder of a run's images, which has room for `most` bytes (None: any). `read_bytes` were
    read by this process, each image once for each time that it was asked for; `kept_bytes` are
    those of all images, in a process that was given a bound.

    >>> import tempfile
    >>> import numpy as np
    >>> from asyncrl.tasks.images.pixels import written_png
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     images = KeptImages(Path(folder))
    ...     name = images.keep(written_png(np.zeros((2, 3, 3), np.uint8)))
    ...     len(name), images.pixels(name).shape
    (64, (2, 3, 3))
    """

    def __init__(self, folder: Path, most: int | None = None) -> None:
        self._folder, self._most = folder, most
        self.read_bytes = 0
        self.kept_bytes = 0
        if most is not None and folder.is_dir():
            self.kept_bytes = sum(image.stat().st_size for image in folder.iterdir())

    def keep(self, png: bytes) -> str:
        """Keep an image, if it is not there. Returns its hash. Raises OSError, and ImagesFull."""
        name = image_hash(png)
        if not (self._folder / name).exists():
            if self._most is not None and self.kept_bytes + len(png) > self._most:
                raise ImagesFull(
                    f"the run's images take {self.kept_bytes:,} bytes, and have no room for "
                    f"{len(png):,} more: raise run.images_gb"
                )
            self._folder.mkdir(exist_ok=True)
            write_whole(self._folder / name, png)
            self.kept_bytes += len(png)
        return name

    def png(self, name: str) -> bytes:
        """The bytes of an image. Raises ValueError for one that is not there, or not what its name
        says, and for a name that is no hash."""
        if not _HASH.fullmatch(name):
            raise ValueError("an image is named by what is no hash")
        try:
            png = read_regular(self._folder / name, KEPT_BYTES)
        except OSError as error:
            raise ValueError(f"the image {name[:12]} cannot be read: {error.strerror}") from error
        if image_hash(png) != name:
            raise ValueError(f"the image {name[:12]} was changed: its bytes have another hash")
        self.read_bytes += len(png)
        return png

    def pixels(self, name: str) -> Pixels:
        """The pixels of an image. Raises ValueError as `png`."""
        return pixels_of(self.png(name))
