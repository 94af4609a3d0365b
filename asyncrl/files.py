"""Files in directories that somebody else may have filled. Invariant: nothing outside a directory
is written through it, and no read waits or is without a bound.

A file is written under a random name that nobody can have linked to elsewhere, and then renamed; a
file that grows is opened where it is no link. Pipes and devices are refused.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"
"""End of the name of a file that is being written."""
PIECE = 2**20
"""Bytes that are read at a time."""
PARTIAL_FOLDER = ".partial-"
"""Start of the name of a directory that is being written."""


@contextmanager
def whole_file(path: Path, *, forced: bool = True) -> Iterator[BinaryIO]:
    """A file that is at `path` when the block has ended, whole, or not at all. One that is not
    `forced` to the disk outlives every process, but not a loss of power. Raises OSError.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_file(Path(folder, "a")) as file:
    ...         _ = file.write(b"1")
    ...     [(path.name, path.read_bytes()) for path in Path(folder).iterdir()]
    [('a', b'1')]
    """
    partial = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}{PARTIAL}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(partial, flags, 0o666)  # what others may do with it is the umask's
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if forced:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: bytes | str, *, forced: bool = True) -> None:
    """Write a file, whole or not at all; text as UTF-8. Raises OSError."""
    with whole_file(path, forced=forced) as file:
        file.write(data.encode(errors="replace") if isinstance(data, str) else data)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError, also for what is not a regular file: a read
    from a pipe or a device may never end."""
    return os.fdopen(_regular(path, os.O_RDONLY | os.O_NONBLOCK), "rb")


def read_regular(path: Path, most: int) -> bytes:
    """Read a file of `most` bytes or fewer. Raises OSError, also for a larger one. The memory that
    it takes is that of what the file has, and not of the bound."""
    data = bytearray()
    with open_regular(path) as file:
        while len(data) <= most and (piece := file.read(min(most + 1 - len(data), PIECE))):
            data += piece
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return bytes(data)


def open_growing(path: Path) -> BinaryIO:
    """Open a file to append to it. Raises OSError, also for a symbolic link: it may lead out of the
    directory."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.fdopen(_regular(path, flags), "ab")


def forget_partial(folder: Path) -> None:
    """Remove the files that writers which were killed have left in a folder. Raises OSError."""
    for left in folder.glob(f".*{PARTIAL}"):
        left.unlink(missing_ok=True)


def forget_partial_folders(folder: Path) -> None:
    """Remove the directories that writers which were killed have left in a folder, as far as they
    can be removed. A symbolic link is left, and nothing is removed through one."""
    if not folder.is_symlink():
        for left in folder.glob(f"{PARTIAL_FOLDER}*"):
            shutil.rmtree(left, ignore_errors=True)


def _regular(path: Path, flags: int) -> int:
    """The descriptor of a regular file, which is made where the flags say so. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    os.set_blocking(descriptor, True)
    return descriptor
