"""Files made of data files once, and read many times. Invariant: each is of the data file as it is
now, and small ones are in memory alone.

A large one is a file in the user's cache, whose name follows from the data file's path, size and
time. Every process of a run maps it. That of an earlier state of the file is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from asyncrl.files import whole_file
from asyncrl.user_cache import cache

SMALL = 64 * 2**20
"""Bytes up to which data is kept in memory, and every row is checked at the start."""
Fill = Callable[[BinaryIO], None]
"""Writes what is kept."""


class _Full(Exception):
    pass


class _Bounded(io.BytesIO):
    """Memory for SMALL bytes."""

    def write(self, data: object) -> int:
        size = memoryview(data).nbytes  # type: ignore[arg-type]
        if self.tell() + size > SMALL:
            raise _Full
        return super().write(data)  # type: ignore[arg-type]


def kept(source: Path, what: str, fill: Fill, *, large: bool = False) -> memoryview:
    """The bytes that `fill` makes of a file, mapped if it is `large` or they are more than SMALL.
    Raises OSError, and what `fill` raises."""
    path = _place(source, what)
    if not path.exists():
        if not large:
            memory = _Bounded()
            with contextlib.suppress(_Full):
                fill(memory)
                return memoryview(memory.getvalue())
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, forced=False) as file:
            fill(file)
        for other in path.parent.glob(f"{path.name.partition('-')[0]}-*"):
            if other != path:
                other.unlink(missing_ok=True)
    return _mapped(path)


def _mapped(path: Path) -> memoryview:
    """A file in memory as the system sees fit. Raises OSError."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def _place(source: Path, what: str) -> Path:
    status = source.stat()
    now = f"{what} {status.st_size} {status.st_mtime_ns} {status.st_ino}"
    names = [
        hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=10).hexdigest()
        for text in (f"{what} {source.absolute()}", now)
    ]
    return cache() / "data" / "-".join(names)
