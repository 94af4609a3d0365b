"""Groups that runs give to each other in a folder (SAPO): one file for each, beside others of its
prompt.

    FOLDER/DIGEST OF THE PROMPT/RUN-VERSION-GROUP.json

Invariant: a file is there whole or not at all, and a reader trusts nothing of it: it is no link, is
not long, has the digest of its content, is of the reader's tokenizer and prompt, and its ids and
log-probabilities can be those of a response. What is not so is passed over.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from asyncrl.files import read_regular, write_whole
from asyncrl.messages import LEAST_LOGPROB, Finish, ForeignAnswer
from asyncrl.runtime.run_dir import SHARE_ID

BYTES = 2**22
"""Bytes of a file, at most."""
FILES = 16
"""Files of a prompt that are read, at most: those of the newest versions."""
ENTRIES = 4096
"""Entries of a prompt's folder that are looked at, at most."""
OTHERS_READ = 0o444
"""Bits of the folder's mode that a group's file has, too."""
ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
NAME = re.compile(r"([0-9a-f]{16})-([0-9]{1,9})-([0-9]{1,12})\.json", re.ASCII)


def share_id(run: Path) -> str:
    """The id of a run among those that share: made once. Raises OSError."""
    path = run / SHARE_ID
    try:
        found = read_regular(path, 64).decode("ascii", "replace").strip()
    except FileNotFoundError:
        found = ""
    if not ID.fullmatch(found):
        found = secrets.token_hex(8)
        write_whole(path, f"{found}\n")
    return found


class SharedAnswer(msgspec.Struct, frozen=True):
    """An answer: its ids, the log-probabilities of their sampling, and how it ended.

    >>> SharedAnswer([52, 10], [-0.5, -0.1], "stop").finish
    'stop'
    """

    ids: list[int]
    logprobs: list[float]
    finish: Finish


class SharedGroup(msgspec.Struct, frozen=True):
    """The own answers of a group of a run whose tokenizer has this digest, of `version` or later.
    `digest` is that of all else.

    >>> group = SharedGroup("00000000000000aa", 7, 3, "letters", [50], [])
    >>> group.name, len(group.sealed().digest)
    ('00000000000000aa-3-7.json', 32)
    """

    run: str
    group: int
    version: int
    tokenizer: str
    prompt_ids: list[int]
    answers: list[SharedAnswer]
    digest: str = ""

    @property
    def name(self) -> str:
        return f"{self.run}-{self.version}-{self.group}.json"

    def sealed(self) -> SharedGroup:
        """The group with its digest."""
        bare = msgspec.structs.replace(self, digest="")
        found = hashlib.blake2b(msgspec.json.encode(bare), digest_size=16).hexdigest()
        return msgspec.structs.replace(bare, digest=found)


def folder_of(folder: Path, prompt: bytes) -> Path:
    """The folder of a prompt (`int32` ids)."""
    return folder / hashlib.blake2b(prompt, digest_size=16).hexdigest()


def write_group(folder: Path, group: SharedGroup) -> Path:
    """Write a group, and return where: for whoever may read the folder, though a run's own files
    are private. Raises OSError, also where a link stands in the place of its prompt's folder."""
    its = folder_of(folder, array("i", group.prompt_ids).tobytes())
    allowed = stat.S_IMODE(folder.stat().st_mode)
    with suppress(FileExistsError):
        its.mkdir()
        its.chmod(allowed)
    if not stat.S_ISDIR(its.lstat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(its))
    path = its / group.name
    write_whole(path, msgspec.json.encode(group.sealed()), forced=False)
    path.chmod(stat.S_IWUSR | allowed & OTHERS_READ)
    return path


class SharedReader:
    """Reader of other runs' groups, for the run `own`, whose tokenizer has a digest and ids below
    `vocabulary`, and whose responses have `most` tokens at most. Answers are as old as their
    version lies behind the newest that was seen of their run, and none is older than `max_age`.

    >>> import tempfile
    >>> answer = SharedAnswer([52, 10], [-0.5, -0.1], "stop")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     group = SharedGroup("00000000000000aa", 7, 3, "letters", [50], [answer])
    ...     _ = write_group(Path(folder), group)
    ...     reader = SharedReader(Path(folder), "00000000000000bb", "letters", 128, 8, 4)
    ...     [found.origin for found in reader.read(array("i", [50]).tobytes())]
    ['group 7 of run 00000000000000aa']
    """

    def __init__(
        self, folder: Path, own: str, tokenizer: str, vocabulary: int, most: int, max_age: int
    ) -> None:
        self._folder, self._own, self._tokenizer = folder, own, tokenizer
        self._vocabulary, self._most, self._max_age = vocabulary, most, max_age
        self._newest: dict[str, int] = {}

    def read(self, prompt: bytes) -> list[ForeignAnswer]:
        """The answers to a prompt (`int32` ids), the newest first. Raises OSError, but for files
        that are gone or cannot be read, which are passed over."""
        answers = list[ForeignAnswer]()
        for version, run, path in self._files(folder_of(self._folder, prompt)):
            age = self._newest[run] - version
            if age <= self._max_age and (group := self._group(path, run, prompt)) is not None:
                answers += (
                    ForeignAnswer(
                        "run",
                        f"group {group.group} of run {run}",
                        -age,
                        array("i", one.ids).tobytes(),
                        array("f", one.logprobs).tobytes(),
                        one.finish,
                    )
                    for one in group.answers
                )
        return answers

    def _files(self, folder: Path) -> list[tuple[int, str, Path]]:
        """The files of other runs, with their versions and runs, the newest first."""
        found = list[tuple[int, str, Path]]()
        for entry in _entries(folder):
            if (match := NAME.fullmatch(entry.name)) is None or match[1] == self._own:
                continue
            if entry.is_file(follow_symlinks=False):
                found.append((int(match[2]), match[1], folder / entry.name))
        for version, run, _ in found:
            if run in self._newest or len(self._newest) < ENTRIES:
                self._newest[run] = max(version, self._newest.get(run, 0))
        known = [one for one in found if one[1] in self._newest]
        return sorted(known, reverse=True)[:FILES]

    def _group(self, path: Path, run: str, prompt: bytes) -> SharedGroup | None:
        """The group in a file; None if it cannot be used."""
        try:
            group = msgspec.json.decode(read_regular(path, BYTES), type=SharedGroup)
        except (OSError, msgspec.DecodeError, RecursionError):
            return None
        right = (
            group.name == path.name
            and group.run == run
            and group.tokenizer == self._tokenizer
            and group == group.sealed()
            and all(0 <= one < self._vocabulary for one in group.prompt_ids)
            and array("i", group.prompt_ids).tobytes() == prompt
            and all(map(self._usable, group.answers))
        )
        return group if right else None

    def _usable(self, answer: SharedAnswer) -> bool:
        return (
            0 < len(answer.ids) == len(answer.logprobs)
            and len(answer.ids) <= self._most
            and all(0 <= one < self._vocabulary for one in answer.ids)
            and all(LEAST_LOGPROB <= p <= 0 for p in answer.logprobs)
            and answer.finish in ("stop", "length")
        )


def of_other_tokenizer(folder: Path, own: str, tokenizer: str) -> str:
    """The path of a group in a folder that another run has written with another tokenizer; empty if
    none of the first ones is such. Raises OSError."""
    for its in _entries(folder):
        if not its.is_dir(follow_symlinks=False):
            continue
        for entry in _entries(folder / its.name):
            match = NAME.fullmatch(entry.name)
            if match is None or match[1] == own or not entry.is_file(follow_symlinks=False):
                continue
            try:
                path = folder / its.name / entry.name
                group = msgspec.json.decode(read_regular(path, BYTES), type=SharedGroup)
            except (OSError, msgspec.DecodeError, RecursionError):
                continue
            return "" if group.tokenizer == tokenizer else str(path)
    return ""


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
