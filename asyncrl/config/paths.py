"""Paths that a user names. Invariant: what the system does not let be looked at is a ConfigError
that names it, and never an OSError: a folder that may not be searched, a name that is too long, a
link that leads to itself.

`Path.is_file` and its like raise for some of these, and answer False for others, by the version of
Python; these functions do not.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.config.errors import ConfigError
from asyncrl.escape import CUT
from asyncrl.os_errors import NO_ROOM, SCARCE
from asyncrl.words import size

SHOWN = 200
"""Characters of a path that a sentence shows, at most: a longer one would hide the reason."""

SPARE_BYTES = 2**24
"""Bytes that a disk must have free beside what is written."""

HUB = "hub:"
"""Start of a path that is the name of a data set."""

_OF_A_DISK = frozenset({errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT})
"""Errors of a read from a disk that fails, or is gone."""


def shown(path: str | Path) -> str:
    """A path for a sentence: a long one without its middle.

    >>> len(shown("a" * 5000)), shown("/data/runs/a")
    (200, '/data/runs/a')
    """
    text, half = str(path), (SHOWN - len(CUT)) // 2
    return text if len(text) <= SHOWN else text[: SHOWN - half - len(CUT)] + CUT + text[-half:]


def exists(path: Path) -> bool:
    """True if there is something at the path, links followed. Raises ConfigError."""
    return _mode(path) is not None


def is_folder(path: Path) -> bool:
    """True for a directory, which can be searched. Raises ConfigError."""
    mode = _mode(path)
    if mode is None or not stat.S_ISDIR(mode):
        return False
    _mode(os.path.join(path, "."))  # noqa: PTH118  # a Path drops the dot
    return True


def is_file(path: Path) -> bool:
    """True for a regular file. Raises ConfigError."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def room_for(path: Path) -> Path:
    """The directory in which a new directory `path` would be made, or `path` itself, if that is
    there. Raises ConfigError if it cannot be written."""
    for above in (path, *path.parents):
        if exists(above) or above.is_symlink():
            if is_folder(above) and os.access(above, os.W_OK | os.X_OK):
                return above
            raise ConfigError(
                f"{shown(path)}: this cannot be written, because {shown(above)} cannot; choose "
                "another directory."
            )
    return Path()


def refuse_small_disk(path: Path, what: str, most: int) -> None:
    """Raise ConfigError if the disk of a directory that is made at `path` has no room for `most`
    bytes of `what`, and SPARE_BYTES beside them."""
    free = shutil.disk_usage(room_for(path.parent if exists(path) else path)).free
    if free < most + SPARE_BYTES:
        raise ConfigError(
            f"{shown(path)}: {what} of {size(most)}, and {size(SPARE_BYTES)} to spare, do not fit "
            f"its disk, which has {size(free)} free; make room, or choose another directory."
        )


def refuse_as_output(path: Path, *, over: bool = False) -> None:
    """Raise ConfigError if no file can be written at a path that a user names: something is there,
    or, if a file is written `over` another, something else than a file; or its folder is not
    there."""
    if over and (exists(path) or path.is_symlink()) and not is_file(path):
        raise ConfigError(f"{shown(path)}: this is not a file, and is not overwritten.")
    if not over and (exists(path) or path.is_symlink()):
        raise ConfigError(f"{shown(path)}: this is there already, and is not overwritten.")
    if not is_folder(path.parent):
        raise ConfigError(f"{shown(path)}: there is no directory {shown(path.parent)} to write to.")


def refuse_unnamed(values: Iterable[object]) -> None:
    """Raise ConfigError if one of these, or of a list among them, is a path with a NUL, which can
    name no file."""
    for value in values:
        if isinstance(value, list | tuple):
            refuse_unnamed(value)
        elif isinstance(value, str | Path) and "\0" in str(value):
            raise ConfigError(f"{shown(value)}: this has a NUL, so it names no file.")


def refuse_nowhere() -> None:
    """Raise ConfigError if the current directory, to which paths are relative, was removed."""
    try:
        Path.cwd()
    except OSError as error:
        raise ConfigError(
            f"the current directory is gone ({error.strerror}): change to one that is there."
        ) from None


def refuse_lost(key: str, path: str) -> None:
    """Raise ConfigError if the setting `key` is a path that cannot be looked at, or a directory
    that cannot be searched."""
    try:
        is_folder(Path(path))
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


def is_hub_name(path: str) -> bool:
    """True for the name of a data set, `hub:ORG/NAME`, where a path could be.

    >>> is_hub_name("hub:org/sums"), is_hub_name("hub/sums.jsonl")
    (True, False)
    """
    return path.startswith(HUB)


@contextmanager
def reachable() -> Iterator[None]:
    """Raise ConfigError for a file that the system refuses in the block, where no other sentence
    says so: the last net of commands that only read."""
    try:
        yield
    except OSError as error:
        if error.errno in SCARCE - NO_ROOM:  # no path is at fault
            raise
        if error.filename is None and error.errno not in _OF_A_DISK:
            raise
        if error.filename is None:  # a read of what was opened names no file
            raise ConfigError(
                f"a file cannot be read to its end ({error.strerror}); look at the disks of the "
                "paths that are named."
            ) from error
        raise ConfigError(_refused(os.fsdecode(error.filename), error)) from error


def _mode(path: str | Path) -> int | None:
    """The kind of what is at the path, links followed; None if nothing is there. Raises
    ConfigError."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116  # of text with a dot at its end, too
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(_refused(path, error)) from None
    except ValueError:  # a NUL, or half of a character
        raise ConfigError(f"{shown(path)}: this cannot be the name of a file.") from None


def _refused(path: str | Path, error: OSError) -> str:
    return f"{shown(path)}: this cannot be used ({error.strerror}); give a path that you can read."
