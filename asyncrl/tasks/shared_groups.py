"""Groups that runs give to each other (SAPO): one file for each, beside others of its prompt, in a
folder or an object store (`shared_places.py`).

    PLACE/DIGEST OF THE PROMPT/RUN-VERSION-GROUP.json

Invariant: a file is there whole or not at all, and a reader trusts nothing of it: it is no link, is
not long, has the digest of its content, is of the reader's tokenizer and prompt, and its ids and
log-probabilities can be those of a response. What is not so is passed over.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from array import array
from itertools import islice
from pathlib import Path

import msgspec

from asyncrl.files import read_regular, write_whole
from asyncrl.messages import LEAST_LOGPROB, Finish, ForeignAnswer
from asyncrl.runtime.run_dir import SHARE_ID
from asyncrl.tasks.shared_places import ENTRIES, SharedPlace

FILES = 16
"""Files of a prompt that are read, at most: those of the newest versions."""
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


def prompt_digest(prompt: bytes) -> str:
    """The name of a prompt (`int32` ids) in a place."""
    return hashlib.blake2b(prompt, digest_size=16).hexdigest()


def write_group(place: SharedPlace, group: SharedGroup) -> tuple[str, str]:
    """Write a group, and return the name of its prompt and its own. Raises OSError and
    StoreError."""
    prompt = prompt_digest(array("i", group.prompt_ids).tobytes())
    place.write(prompt, group.name, msgspec.json.encode(group.sealed()))
    return prompt, group.name


class SharedReader:
    """Reader of other runs' groups, for the run `own`, whose tokenizer has a digest and ids below
    `vocabulary`, and whose responses have `most` tokens at most. Answers are as old as their
    version lies behind the newest that was seen of their run, and none is older than `max_age`.

    >>> import tempfile
    >>> from asyncrl.tasks.shared_places import SharedFolder
    >>> answer = SharedAnswer([52, 10], [-0.5, -0.1], "stop")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = SharedFolder(Path(folder))
    ...     group = SharedGroup("00000000000000aa", 7, 3, "letters", [50], [answer])
    ...     _ = write_group(place, group)
    ...     reader = SharedReader(place, "00000000000000bb", "letters", 128, 8, 4)
    ...     [found.origin for found in reader.read(array("i", [50]).tobytes())]
    ['group 7 of run 00000000000000aa']
    """

    def __init__(
        self, place: SharedPlace, own: str, tokenizer: str, vocabulary: int, most: int, max_age: int
    ) -> None:
        self._place, self._own, self._tokenizer = place, own, tokenizer
        self._vocabulary, self._most, self._max_age = vocabulary, most, max_age
        self._newest: dict[str, int] = {}

    def read(self, prompt: bytes) -> list[ForeignAnswer]:
        """The answers to a prompt (`int32` ids), the newest first. Raises OSError and StoreError,
        but for files that are gone or cannot be read, which are passed over."""
        answers, its = list[ForeignAnswer](), prompt_digest(prompt)
        for version, run, name in self._files(its):
            age = self._newest[run] - version
            if age <= self._max_age and (group := self._group(its, name, run, prompt)) is not None:
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

    def _files(self, prompt: str) -> list[tuple[int, str, str]]:
        """The files of other runs, with their versions and runs, the newest first."""
        found = list[tuple[int, str, str]]()
        for name in self._place.names(prompt):
            if (match := NAME.fullmatch(name)) is not None and match[1] != self._own:
                found.append((int(match[2]), match[1], name))
        for version, run, _ in found:
            if run in self._newest or len(self._newest) < ENTRIES:
                self._newest[run] = max(version, self._newest.get(run, 0))
        known = [one for one in found if one[1] in self._newest]
        return sorted(known, reverse=True)[:FILES]

    def _group(self, its: str, name: str, run: str, prompt: bytes) -> SharedGroup | None:
        """The group in a file; None if it cannot be used."""
        try:
            group = msgspec.json.decode(self._place.read(its, name), type=SharedGroup)
        except (OSError, msgspec.DecodeError, RecursionError):
            return None
        right = (
            group.name == name
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


def of_other_tokenizer(place: SharedPlace, own: str, tokenizer: str) -> str:
    """The name of a group in a place that another run has written with another tokenizer; empty if
    the first one that can be read is not such. Raises OSError and StoreError."""
    for prompt, name in islice(place.some(), ENTRIES):
        match = NAME.fullmatch(name)
        if match is None or match[1] == own:
            continue
        try:
            group = msgspec.json.decode(place.read(prompt, name), type=SharedGroup)
        except (OSError, msgspec.DecodeError, RecursionError):
            continue
        return "" if group.tokenizer == tokenizer else f"{prompt}/{name}"
    return ""
