"""Remedies for errors of the operating system. Invariant: a remedy follows from the error's number,
not from the place that met it: no disk is blamed where a process may open no further file.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errors of a write that a retry does not help: the disk is full, a quota is used up, or the disk
is read-only."""
NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of a process, or of a machine, that may open no further file."""
SCARCE = frozenset({errno.ENOMEM, errno.EAGAIN, *NO_FILES, *NO_ROOM})
"""Errors of a machine without room: for memory, processes or files, or on a disk."""
OTHER = "see that its disk has room and is writable"
"""The remedy for an error that names no cause."""

_REMEDIES = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room, or have the quota raised",
    errno.EROFS: "mount its disk so that it is writable",
    errno.EMFILE: "let a process open more files (ulimit -n)",
    errno.ENFILE: "let the machine open more files (fs.file-max), or end what holds them",
    errno.EAGAIN: "let this user start more processes (ulimit -u)",
    errno.ENOMEM: "make room in memory",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.EIO: "look at the disk and at the machine's log, because the disk fails",
    errno.EISDIR: "move away the directory that has its name",
    errno.EFBIG: "let a file be larger (ulimit -f)",
    errno.ENOENT: "put back the directory that is gone",
    errno.ENOTDIR: "put back the directory that is gone",
}
PUT_BACK = "put the file back, or move away what has its name"
"""The remedy for what is read and is no file."""
_TO_READ = {
    errno.EISDIR: PUT_BACK,
    errno.EACCES: "give this user the right to read it",
    errno.EPERM: "give this user the right to read it",
    errno.ENOENT: PUT_BACK,
    errno.ENOTDIR: PUT_BACK,
    errno.EFBIG: PUT_BACK,
}
_NUMBER = re.compile(r"\[Errno ([0-9]+)\]|\bos error ([0-9]+)\b|\bcode: ([0-9]+)\b")
"""An error's number in the words of Python, and of libraries in Rust (safetensors)."""
_SCARCE = re.compile(
    r"MemoryError|(not enough|out of|cannot allocate|can't allocate) memory|start new thread"
    r"|failed to map segment from shared object(?!: Operation)",
    re.I,
)
"""Words of errors without a number: of torch, and of libraries that raise an error of their own."""
_SQLITE_OPENS = 3
"""Files that SQLite opens for a database: itself, its log and the log's index."""


def number_of(error: BaseException | str) -> int:
    """The number of the error of the operating system that is behind `error`, or behind one of a
    group, or that its words name; 0 if there is none.

    >>> number_of(ExceptionGroup("two", [ValueError(), OSError(errno.EIO, "Input/output error")]))
    5
    >>> number_of("I/O error: Too many open files (os error 24)")
    24
    """
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(number_of, error.exceptions)), 0)
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if found := _NUMBER.search(str(error)):
        return int(next(filter(None, found.groups())))
    return number_of(error.__cause__) if isinstance(error, BaseException) and error.__cause__ else 0


def machine_lacks(error: BaseException | str) -> bool:
    """True if a machine that lacks something is behind an error, or behind one of a group, or if
    the words of one say so. Another try may succeed then, whatever was read meanwhile.

    >>> try:
    ...     try:
    ...         raise MemoryError
    ...     except MemoryError as error:
    ...         raise ValueError("this cannot be read") from error
    ... except ValueError as error:
    ...     machine_lacks(error)
    True
    >>> machine_lacks(ValueError("this cannot be read"))
    False
    """
    if isinstance(error, BaseExceptionGroup):
        return any(map(machine_lacks, error.exceptions))
    if isinstance(error, MemoryError) or number_of(error) in SCARCE or _SCARCE.search(str(error)):
        return True
    behind = None if isinstance(error, str) else error.__cause__ or error.__context__
    return behind is not None and machine_lacks(behind)


def remedy(error: BaseException | str) -> str:
    """The remedy for an error, as a command to its user.

    >>> remedy(OSError(errno.EMFILE, "Too many open files"))
    'let a process open more files (ulimit -n)'
    >>> remedy(OSError(errno.ENOTTY, "not a typewriter")) == OTHER
    True
    >>> remedy("libc.so: failed to map segment from shared object"), remedy("MemoryError")
    ('make room in memory', 'make room in memory')
    """
    if number := number_of(error):
        return _REMEDIES.get(number, OTHER)
    words = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
    if not (scarce := _SCARCE.search(words)):
        return OTHER
    return _REMEDIES[errno.EAGAIN if "thread" in scarce[0] else errno.ENOMEM]


def to_read(error: OSError) -> str:
    """The remedy for an error of a file that is read, as a command to its user.

    >>> to_read(IsADirectoryError(errno.EISDIR, "Is a directory"))
    'put the file back, or move away what has its name'
    """
    return _TO_READ.get(error.errno or 0) or _REMEDIES.get(error.errno or 0, PUT_BACK)


def opening(path: Path) -> OSError | None:
    """The error for which the files of a database cannot be opened, whose library does not say it;
    None if they can be opened now."""
    try:
        with ExitStack() as files:
            for _ in range(_SQLITE_OPENS):
                files.enter_context(_opened(path if path.exists() else path.parent))
    except OSError as error:
        return error
    return None


@contextmanager
def _opened(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield
    finally:
        os.close(descriptor)
