"""Temporary folders of processes that may be killed.

Invariant: a folder outlives its process only until the next one of its kind is made by this user on
this machine; one whose process lives is never touched. Its process holds a lock of the folder
itself, which ends with the process, however that is.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RANDOM_BYTES = 8
"""Bytes of the random part of a name."""


@contextmanager
def own_folder(kind: str) -> Iterator[Path]:
    """Make a folder of this process alone, `asyncrl-KIND-…` among the temporary files, which is
    removed at the block's end; those of its kind whose process was killed are removed before.
    Raises OSError.

    >>> with own_folder("doctest") as folder:
    ...     (folder / "file").touch()
    >>> folder.exists()
    False
    """
    remove_left(kind)
    folder, held = _made(kind)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def remove_left(kind: str) -> None:
    """Remove the folders of a kind, of this user, whose process was killed. What is not such a
    folder, or cannot be removed, is left."""
    named = re.compile(rf"asyncrl-{kind}-[0-9a-f]{{{2 * RANDOM_BYTES}}}")
    for folder in Path(tempfile.gettempdir()).glob(f"asyncrl-{kind}-*"):
        if named.fullmatch(folder.name):
            with suppress(OSError):
                held = _opened(folder)
                try:
                    if os.fstat(held).st_uid == os.geteuid():
                        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(held)


def _made(kind: str) -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock. Another process may take a new folder
    for one that was left, until it is locked; then there is a next one."""
    while True:
        name = f"asyncrl-{kind}-{secrets.token_hex(RANDOM_BYTES)}"
        folder = Path(tempfile.gettempdir(), name)
        folder.mkdir(0o700)
        with suppress(FileNotFoundError):
            held = _opened(folder)
            fcntl.flock(held, fcntl.LOCK_EX)
            if folder.exists():
                return folder, held
            os.close(held)


def _opened(folder: Path) -> int:
    """The descriptor of a directory. Raises OSError, also for a symbolic link."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
