"""The images of a run, `RUN/images/HASH`. Invariant: the bytes under a name have that hash, and a
name that is no hash names no file.

The coordinator keeps an image of a prompt before the event that names it, and an agents actor keeps
one of a call before it asks, so every image of a journal is there. It is written once, however many
prompts and calls show it. All of them together are bounded: what shows an image that finds no room
is not read.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from asyncrl.files import read_regular, write_whole
from asyncrl.tasks import TaskError
from asyncrl.tasks.images.pixels import PIXELS, Pixels, image_hash, pixels_of

KEPT_BYTES = 4 * PIXELS
"""Bytes of a kept image, at most: three of a pixel, and what zlib adds to noise."""
COUNTS = 64
"""Times that a process counts the folder while it fills it: it does not see what others write."""
_HASH = re.compile(r"[0-9a-f]{64}")


class ImagesFull(TaskError):
    """Raised where a run's images have no room for one more."""


class KeptImages:
    """The folder of a run's images, which has room for `most` bytes (None: any), and for a
    64th of that more for each other process that writes there. `read_bytes` were read by this
    process, each image once for each time that it was asked for; `kept_bytes` are those of all
    images, in a process that was given a bound, but of what others have written since it counted.

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
        self._uncounted = 0  # of its own, since it counted
        if most is not None:
            self._count()

    def keep(self, png: bytes) -> str:
        """Keep an image, if it is not there. Returns its hash. Raises OSError, and ImagesFull."""
        name = image_hash(png)
        if not (self._folder / name).exists():
            self._refuse_beyond(len(png))
            self._folder.mkdir(exist_ok=True)
            write_whole(self._folder / name, png)
            self.kept_bytes += len(png)
            self._uncounted += len(png)
        return name

    def _refuse_beyond(self, more: int) -> None:
        """Check that there is room for more bytes. Raises ImagesFull."""
        if self._most is None:
            return
        if self._uncounted > self._most // COUNTS:
            self._count()
        if self.kept_bytes + more > self._most:
            raise ImagesFull(
                f"the run's images take {self.kept_bytes:,} bytes, and have no room for {more:,} "
                "more: raise run.images_gb"
            )

    def _count(self) -> None:
        """Count the folder, to which other processes write, too."""
        self.kept_bytes = self._uncounted = 0
        for image in self._folder.iterdir() if self._folder.is_dir() else ():
            with suppress(FileNotFoundError):  # it was half written, and has its own name now
                self.kept_bytes += image.stat().st_size

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
