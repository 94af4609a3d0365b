"""Notes of what was opened outside of a run's processes: containers, remote sandboxes, directories.

    note → open → … → end → forget the note

Invariant: what was opened has a note until it is gone, whatever is killed: the note is on the disk
before anything is opened. A note is data: its kind says how its thing is ended (`enders.py`), and
nothing of it is executed. What is read back is a stranger's until it is checked: a run's directory
may have been prepared, and an agent's own program may write notes.

A note is a small JSON file, `RUN/opened/OWNER/NAME.json`. Its owner is an attempt at an episode
(`agents-0.r12-1`), or another part of the run; so what an owner left is found by its folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from asyncrl.files import PARTIAL, read_regular, write_whole

FOLDER = "opened"
"""The folder of the notes in a run's directory."""
SCRATCH = "scratch"
"""The folder of the directories (kind `directory`) in a run's directory."""
VARIABLE = "ASYNCRL_OPENED"
"""The environment variable that names an attempt's folder of notes to its processes."""
OURS = "asyncrl-"
"""Start of a container's name: no note ends a container of somebody else."""
ENGINES = ("docker", "podman")
"""Commands that end containers."""
NOTE_BYTES = 4096
"""Bytes of a note, at most."""
MOST = 100_000
"""Notes that are read at a time, at most; the next time reads the others."""
SAFE_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ONE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@=-]{0,255}")
_PROVIDER = re.compile(r"[a-z][a-z0-9_-]{0,31}")

OpenedKind = Literal["container", "directory", "remote", "command"]


class NoteError(ValueError):
    """A note is not one of ours, or cannot be ended by its kind; the text says why."""


class Opened(msgspec.Struct, frozen=True):
    """A thing that is opened, and how it is ended, by its kind:

    container   `name` begins with `asyncrl-`; `end` is the engine's command, docker or podman
    directory   `RUN/scratch/name`; `end` is empty
    remote      `name` is the provider's id; `end` is the provider's name
    command     `name` is the last argument of the command `agent.end`; `end` is empty

    >>> Opened("container", "asyncrl-1", ("docker",)).checked().name
    'asyncrl-1'
    >>> Opened("container", "-f", ("docker",)).checked()
    Traceback (most recent call last):
    asyncrl.sandbox.opened.NoteError: '-f' is no name of a container that begins with asyncrl-
    """

    kind: OpenedKind
    name: str
    end: tuple[str, ...] = ()

    def checked(self) -> Opened:
        """Return itself. Raises NoteError if its kind cannot be ended by what it says."""
        pattern = _ONE if self.kind in ("container", "directory") else _ID
        if self.kind == "container" and not self.name.startswith(OURS):
            raise NoteError(f"{self.name!r} is no name of a container that begins with {OURS}")
        if not pattern.fullmatch(self.name) or ".." in self.name:
            raise NoteError(f"{self.name[:100]!r} is no name of a {self.kind}")
        right = {
            "container": len(self.end) == 1 and self.end[0] in ENGINES,
            "remote": len(self.end) == 1 and bool(_PROVIDER.fullmatch(self.end[0])),
        }
        if not right.get(self.kind, not self.end):
            wanted = {"container": " or ".join(ENGINES), "remote": "the name of its provider"}
            raise NoteError(f"the end of a {self.kind} is {wanted.get(self.kind, 'empty')}")
        return self

    def __str__(self) -> str:
        return " ".join([self.kind, self.name, *(f"({word})" for word in self.end)])


class LeftNote(NamedTuple):
    """A note that was found: its `owner` and its file; `opened` is None where it cannot be read,
    and `wrong` says why."""

    owner: str
    path: Path
    opened: Opened | None
    wrong: str = ""

    def forget(self) -> None:
        """Remove the note: what it names is gone. Raises OSError."""
        self.path.unlink(missing_ok=True)


def notes_of(run: Path, owner: str) -> Path:
    """The folder of an owner's notes. Raises NoteError for what is no name."""
    if not SAFE_OWNER.fullmatch(owner):
        raise NoteError(f"{owner[:100]!r} is no name of an owner of notes")
    return run / FOLDER / owner


def note(run: Path, opened: Opened, owner: str = "run") -> None:
    """Write a note, which outlives every process and a loss of power, before the thing is opened.
    Raises NoteError, and OSError, after which it must not be opened."""
    note_in(notes_of(run, owner), opened)


def ended(run: Path, opened: Opened, owner: str = "run") -> None:
    """Forget a note: the thing is gone. Raises OSError."""
    ended_in(notes_of(run, owner), opened)


def note_in(folder: Path, opened: Opened) -> None:
    """Write a note into an owner's folder; as `note`."""
    opened.checked()
    for made in (folder.parent, folder):
        made.mkdir(mode=0o700, exist_ok=True)
    if folder.parent.is_symlink() or folder.is_symlink():
        raise NoteError(f"{folder} is a symbolic link, and no note is written through it")
    write_whole(folder / file_of(opened), msgspec.json.encode(opened))
    for changed in (folder, folder.parent, folder.parent.parent):
        _force(changed)


def ended_in(folder: Path, opened: Opened) -> None:
    """Forget a note in an owner's folder; as `ended`."""
    (folder / file_of(opened)).unlink(missing_ok=True)
    forget_empty(folder)


def note_here(opened: Opened) -> None:
    """Write a note of the attempt that this process plays, as `note`; nothing in another
    process."""
    if folder := os.environ.get(VARIABLE):
        note_in(Path(folder), opened)


def ended_here(opened: Opened) -> None:
    """Forget such a note."""
    if folder := os.environ.get(VARIABLE):
        ended_in(Path(folder), opened)


def forget_empty(folder: Path) -> None:
    """Remove an owner's folder if it has no note."""
    try:
        folder.rmdir()
    except OSError:  # it has one, or is gone
        return


def any_left(run: Path) -> bool:
    """True unless a run's directory certainly has nothing for `left` to read."""
    folder = run / FOLDER
    if folder.is_symlink():
        return True
    try:
        with os.scandir(folder) as found:
            return next(found, None) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True


def left(run: Path, of: str = "") -> Iterator[LeftNote]:
    """Read the notes that are left in a run's directory, of all owners, or of the owner `of` and
    those whose name goes on from it with a dot. What is no note of ours is returned with the
    reason. Parts of notes are removed, since nothing was opened after them; a symbolic link is not
    followed. Raises NoteError if the folder itself is none, and OSError."""
    folder = run / FOLDER
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise NoteError(f"{folder} is no folder of notes; look at what it is, and remove it")
    if not folder.exists():
        return iter(())
    return islice(_notes(folder, of), MOST)


def _notes(folder: Path, of: str) -> Iterator[LeftNote]:
    for owner in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if of and owner.name != of and not owner.name.startswith(f"{of}."):
            continue
        path = Path(owner.path)
        if not owner.is_dir(follow_symlinks=False):
            yield LeftNote("", path, None, "it is no folder of an owner")
            continue
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.name.endswith(PARTIAL) and entry.is_file(follow_symlinks=False):
                Path(entry.path).unlink(missing_ok=True)
                continue
            yield _read(owner.name, Path(entry.path))
        forget_empty(path)


def _read(owner: str, path: Path) -> LeftNote:
    """Read a note, which may be anything."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return LeftNote(owner, path, None, "it is no regular file")
        opened = msgspec.json.decode(read_regular(path, NOTE_BYTES), type=Opened).checked()
    except (OSError, RecursionError, msgspec.MsgspecError, NoteError) as error:
        return LeftNote(owner, path, None, str(error))
    return LeftNote(owner, path, opened)


def file_of(opened: Opened) -> str:
    """The name of a note's file: of two notes of one thing there is one."""
    named = msgspec.json.encode([opened.kind, opened.name, opened.end])
    return f"{hashlib.blake2b(named, digest_size=16).hexdigest()}.json"


def _force(folder: Path) -> None:
    """Have a folder's names on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
