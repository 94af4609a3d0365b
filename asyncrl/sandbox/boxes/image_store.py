"""Images of this machine's container engine, pulled through a cache.

Invariant: of all processes of this user on the machine, one pulls an image at a time, and few pull
at all; each pull has a deadline. No image is removed that asyncrl did not pull.

The engine has the images. A folder of this user has what the engine does not know: locks, and a
record of each image that asyncrl pulled, whose time is that of its last use. A process of its own
pulls (`image_pull.py`), because it waits for locks, which the kernel gives back when it is killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from asyncrl.files import SMALL_BYTES, read_regular
from asyncrl.sandbox.boxes.box_errors import ImageError
from asyncrl.sandbox.boxes.box_names import wrong_image
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.boxes.client_command import asked, last_line
from asyncrl.sandbox.programs.program import Program, Ran
from asyncrl.user_cache import cache

SPARED_S = 900.0
"""Seconds after its last use in which an image is not removed: a container may be about to begin.
An image that a container has is never removed, because the engine refuses that."""
GIGABYTE = 10**9


class PullOrder(msgspec.Struct, frozen=True):
    """An image to pull: what the pulling process is told."""

    client: str
    image: str
    folder: str
    at_a_time: int
    most_bytes: int
    seconds: float


class PulledImage(msgspec.Struct, frozen=True):
    """The record of an image that asyncrl pulled."""

    image: str
    bytes: int


class KeptImage(NamedTuple):
    """A record in the folder, and the time of its image's last use."""

    path: Path
    image: str
    bytes: int
    used: float


class ImageStore:
    """The images of an engine's `client`, with a folder of locks and records."""

    def __init__(self, client: str, settings: BoxSettings) -> None:
        self._client, self._settings = client, settings
        self._folder = cache() / "images" / client

    def looks(self, image: str) -> Program:
        """The program that looks whether an image is here. Raises ImageError for what is no name of
        one."""
        if wrong := wrong_image(image):
            raise ImageError(wrong)
        return asked([self._client, "image", "inspect", "--format", "{{.Size}}", image])

    def is_here(self, image: str, ran: Ran) -> bool:
        """True if the program that looked found the image, which is used now."""
        if not ran.well:
            return False
        with contextlib.suppress(FileNotFoundError):  # asyncrl did not pull it
            os.utime(record_path(self._folder, image))
        return True

    def pulls(self, image: str) -> Program:
        """The program that pulls an image, once it is its turn."""
        order = PullOrder(
            self._client,
            image,
            str(self._folder),
            self._settings.pulls,
            int(self._settings.images_gb * GIGABYTE),
            self._settings.pull_s,
        )
        words = [sys.executable, "-P", "-m", "asyncrl.sandbox.boxes.image_pull"]
        return asked(words, self._settings.pull_s, msgspec.json.encode(order))

    def refuse(self, image: str, ran: Ran) -> None:
        """Raise ImageError unless the program that pulled has the image."""
        if ran.timed_out:
            raise ImageError(
                f"the image {image} was not pulled within sandbox.pull_s, {ran.seconds:.0f} s"
            )
        if not ran.well:
            why = last_line(ran)
            for name in (image, re.split(r"[:@][^/]*$", image)[0]):
                why = why.replace(name, "it")  # so that one reason for all images is one reason
            raise ImageError(f"the image {image} cannot be pulled: {why}")


def record_path(folder: Path, image: str) -> Path:
    """The file of an image's record."""
    return folder / f"{_digest(image)}.json"


def lock_path(folder: Path, image: str) -> Path:
    """The file that who pulls an image locks. It is one of 256, so that there are no more."""
    return folder / f"{_digest(image)[:2]}.lock"


def failure_path(folder: Path, image: str) -> Path:
    """The file that has why an image could not be pulled at the last time."""
    return folder / f"{_digest(image)[:2]}.failed"


def evicted(
    kept: list[KeptImage], most_bytes: int, now: float, remove: Callable[[str], bool]
) -> list[str]:
    """Have images removed, those unused for longest first, until the others have `most_bytes` or
    fewer; `remove` returns False for one that a container has. Returns the names of those removed.

    >>> kept = [KeptImage(Path("a"), "a", 5, 0.0), KeptImage(Path("b"), "b", 5, 1.0)]
    >>> evicted(kept, 5, 10_000.0, lambda image: True)
    ['a']
    """
    left = sum(image.bytes for image in kept)
    gone = []
    for image in sorted(kept, key=lambda image: image.used):
        if left <= most_bytes or now - image.used < SPARED_S:
            break
        if remove(image.image):
            gone.append(image.image)
            left -= image.bytes
    return gone


def kept_images(folder: Path) -> list[KeptImage]:
    """The records in a folder; one that cannot be read is left out."""
    found = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            record = msgspec.json.decode(read_regular(path, SMALL_BYTES), type=PulledImage)
            if record_path(folder, record.image) == path and not wrong_image(record.image):
                used = path.stat().st_mtime
                found.append(KeptImage(path, record.image, record.bytes, min(used, time.time())))
    return found


def _digest(image: str) -> str:
    return hashlib.blake2b(image.encode(), digest_size=16).hexdigest()
