"""Files in directories that somebody else may have filled. Invariant: nothing outside a directory
is written through it, and no read waits or is without a bound.

A file is written under a random name that nobody can have linked to elsewhere, and then renamed; a
file that grows is opened where it is no link. Pipes and devices are refused.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from asyncrl.os_errors import NO_ROOM

PROBE_BYTES = 2**20
"""Bytes that a disk must have for a run to be started again: less is gone within seconds."""
PARTIAL = ".partial"
"""End of the name of a file that is being written."""
PIECE_BYTES = 2**16
"""Bytes that are read at a time."""
JSON_BYTES = 2**28
"""Bytes of a JSON file of a model or a checkpoint, at most; the largest tokenizers have tens of
millions."""
SMALL_BYTES = 2**16
"""Bytes of a file that holds a key, at most."""
EXTENTS = 100_000
"""Stretches of a file between holes that are counted; one that was written as usual has one."""
PARTIAL_FOLDER = ".partial-"
"""Start of the name of a directory that is being written."""


@contextmanager
def whole_file(path: Path, *, forced: bool = True) -> Iterator[BinaryIO]:
    """A file that is at `path` when the block has ended, whole, or not at all. One that is not
    `forced` to the disk outlives every process, but not a loss of power. A file that its user may
    not write stays, though its folder would let it be replaced. Raises OSError.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_file(Path(folder, "a")) as file:
    ...         _ = file.write(b"1")
    ...     [(path.name, path.read_bytes()) for path in Path(folder).iterdir()]
    [('a', b'1')]
    """
    mine = {"effective_ids": True, "follow_symlinks": False}  # a link is replaced, not followed
    if os.path.lexists(path) and not os.access(path, os.W_OK, **mine):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    partial = path.with_name(
        f".{os.fsdecode(os.fsencode(path.name)[:100])}.{secrets.token_hex(8)}{PARTIAL}"
    )
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


def not_its_own(path: Path) -> str:
    """Return what a path is, in words, if a write to it would go elsewhere than into a file of its
    own; "" for such a file, and for nothing.

    >>> not_its_own(Path("/dev/null")), not_its_own(Path("/dev/null/none"))
    ('no regular file', '')
    """
    try:
        status = path.lstat()
    except OSError:  # it is not there yet
        return ""
    if stat.S_ISLNK(status.st_mode):
        return "a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    return "a second name of a file (a hard link)" if status.st_nlink > 1 else ""


def takes_nothing(folder: Path) -> OSError | None:
    """The error for which nothing can be written to a folder now: its disk is full, a quota is
    used up, or it is read-only. None if PROBE_BYTES can be written."""
    probe = folder / ".probe"
    try:
        write_whole(probe, bytes(PROBE_BYTES))
        probe.unlink()
    except OSError as error:
        return no_room(error)
    return None


def no_room(error: BaseException | None) -> OSError | None:
    """The error of a disk that takes nothing (NO_ROOM) that is behind `error`, or behind one of a
    group; None if there is none.

    >>> full = OSError(errno.ENOSPC, "no room")
    >>> no_room(ExceptionGroup("two", [ValueError(), full])) is full
    True
    >>> no_room(OSError(errno.ENOENT, "no such file"))
    """
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(no_room, error.exceptions)), None)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return error
    return None if error is None else no_room(error.__cause__)


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading. Raises OSError, also for what is not a regular file: a read
    from a pipe or a device may never end."""
    return os.fdopen(_regular(path, os.O_RDONLY | os.O_NONBLOCK), "rb")


def read_regular(path: Path, most: int) -> bytes:
    """Read a file of `most` bytes or fewer. Raises OSError, also for a larger one."""
    data = bytearray()
    with open_regular(path) as file:
        while piece := file.read(PIECE_BYTES):  # a read of `most` would take that much memory
            data += piece
            if len(data) > most:
                raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return bytes(data)


def held_bytes(path: Path) -> int:
    """Bytes of a file without its holes, of its first EXTENTS stretches; 0 if it is not there.
    Raises OSError.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.seek(2**24), file.write(bytes(5)), file.flush()
    ...     held_bytes(Path(file.name)) < 2**20
    True
    """
    held = end = 0
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return 0
    with file:
        for _ in range(EXTENTS):
            try:
                begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # there is no further one
            end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            held += end - begin
    return held


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
