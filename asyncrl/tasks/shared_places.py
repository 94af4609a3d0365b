"""Places where runs leave groups for each other: a folder that all have, or an object store. A
group is an object `PROMPT/NAME`. Invariant: what others left is read as far as a bound, and never
through a link or from a pipe; a place that fails raises OSError or StoreError, and nothing else.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from asyncrl.files import read_regular, write_whole
from asyncrl.object_store import MissingObject, folder_of, open_store, understood

if TYPE_CHECKING:
    from obstore.store import ObjectStore

BYTES = 2**22
"""Bytes of an object, at most."""
ENTRIES = 4096
"""Objects of a prompt that are looked at, at most."""
OTHERS_READ = 0o444
"""Bits of the folder's mode that a group's file has, too."""


class SharedPlace(Protocol):
    """A place with objects of prompts.

    >>> def newest(place: SharedPlace, prompt: str) -> bytes:
    ...     return place.read(prompt, max(place.names(prompt)))
    """

    def names(self, prompt: str) -> list[str]:
        """The names of a prompt's objects, ENTRIES at most."""

    def some(self) -> Iterator[tuple[str, str]]:
        """The first objects of all: prompts and names."""

    def read(self, prompt: str, name: str) -> bytes:
        """An object of BYTES at most. Raises OSError for one that is gone, is larger, or cannot be
        read, and StoreError for a store that fails."""

    def write(self, prompt: str, name: str, data: bytes) -> None:
        """Write an object, whole or not at all."""

    def remove(self, prompt: str, name: str) -> None:
        """Remove an object, which may be gone."""


def shared_place(setting: str) -> SharedPlace:
    """The place that a setting names. Raises StoreError.

    >>> shared_place("/shared/groups")
    SharedFolder('/shared/groups')
    """
    folder = folder_of(setting)
    return (
        SharedStore(open_store(setting, patient=False)) if folder is None else SharedFolder(folder)
    )


class SharedFolder:
    """A folder with a folder for each prompt. Its files are for whoever may read it, though a run's
    own files are private.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as path:
    ...     place = SharedFolder(Path(path))
    ...     place.write("5c", "one.json", b"{}")
    ...     place.names("5c"), place.names("5d"), list(place.some()), place.read("5c", "one.json")
    (['one.json'], [], [('5c', 'one.json')], b'{}')
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __repr__(self) -> str:
        return f"SharedFolder({str(self._path)!r})"

    def names(self, prompt: str) -> list[str]:
        return [
            entry.name
            for entry in _entries(self._path / prompt)
            if entry.is_file(follow_symlinks=False)
        ]

    def some(self) -> Iterator[tuple[str, str]]:
        for entry in _entries(self._path):
            if entry.is_dir(follow_symlinks=False):
                yield from ((entry.name, name) for name in self.names(entry.name))

    def read(self, prompt: str, name: str) -> bytes:
        return read_regular(self._path / prompt / name, BYTES)

    def write(self, prompt: str, name: str, data: bytes) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        its, allowed = self._path / prompt, stat.S_IMODE(self._path.stat().st_mode)
        with suppress(FileExistsError):
            its.mkdir()
            its.chmod(allowed)
        if not stat.S_ISDIR(its.lstat().st_mode):  # a link that somebody made leads elsewhere
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(its))
        write_whole(its / name, data, forced=False)
        (its / name).chmod(stat.S_IWUSR | allowed & OTHERS_READ)

    def remove(self, prompt: str, name: str) -> None:
        (self._path / prompt / name).unlink(missing_ok=True)


class SharedStore:
    """An object store, whose every request has a deadline and is tried again for some seconds.

    >>> from types import SimpleNamespace
    >>> store = SimpleNamespace(list=lambda prefix, chunk_size: [[{"path": "5c/one.json"}]])
    >>> list(SharedStore(store).some())
    [('5c', 'one.json')]
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def names(self, prompt: str) -> list[str]:
        return [name for its, name in self._listed(f"{prompt}/") if its == prompt]

    def some(self) -> Iterator[tuple[str, str]]:
        return self._listed("")

    def read(self, prompt: str, name: str) -> bytes:
        data = bytearray()
        try:
            with understood():
                found = self._store.get(f"{prompt}/{name}")
                large = found.meta["size"] > BYTES
                for piece in () if large else found.stream(min_chunk_size=2**16):
                    data += piece
                    large = len(data) > BYTES  # whatever it says of itself
                    if large:
                        break
        except MissingObject as error:
            raise FileNotFoundError(str(error)) from None
        if large:
            raise OSError(f"{prompt}/{name} is larger than {BYTES:,} bytes")
        return bytes(data)

    def write(self, prompt: str, name: str, data: bytes) -> None:
        with understood():
            self._store.put(f"{prompt}/{name}", data)

    def remove(self, prompt: str, name: str) -> None:
        try:
            with understood():
                self._store.delete(f"{prompt}/{name}")
        except MissingObject:
            return

    def _listed(self, prefix: str) -> Iterator[tuple[str, str]]:
        """The first ENTRIES objects below a prefix."""
        seen = 0
        with understood():
            for piece in self._store.list(prefix or None, chunk_size=ENTRIES):
                for meta in piece[: ENTRIES - seen]:
                    its, _, name = meta["path"].removeprefix("/").partition("/")
                    yield its, name
                if (seen := seen + len(piece)) >= ENTRIES:
                    return


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The first entries of a folder; none if it is not there, or not for this user to read."""
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= ENTRIES:
                    return
                yield entry
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
