"""The draws of a frozen policy, and the ends of its games, in a file of lines. Invariant: a group
meets the version that it first drew, whatever is killed: a draw is on the disk before it plays.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncrl.algorithms.selection.league import LeagueRule, PastVersion, drawn
from asyncrl.files import open_growing, read_regular

BYTES = 2**30
"""Bytes of the file, at most."""


class Drawn(msgspec.Struct, frozen=True, tag=True):
    """A group's version."""

    group: int
    version: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The reward of a version in a game."""

    game: int
    version: int
    reward: float


class PastDraws:
    """The file at `path`, in which `rule` draws; `key` begins the keys of its draws.

    >>> import tempfile
    >>> from asyncrl.algorithms.selection.league_latest import Latest
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "draws")
    ...     first = PastDraws(file, Latest(), "a key").draw(3, [0, 20])
    ...     again = PastDraws(file, Latest(), "a key").draw(3, [0, 20, 40])
    >>> first, again
    (20, 20)
    """

    def __init__(self, path: Path, rule: LeagueRule, key: str) -> None:
        self._rule, self._key = rule, key
        self._versions = dict[int, int]()
        self._rewards = defaultdict[int, dict[int, float]](dict)
        cut = self._read(path)
        self._file = open_growing(path)
        if cut:
            self._file.write(b"\n")

    def draw(self, group: int, versions: Sequence[int]) -> int:
        """The version of a group: the one it has, or one of `versions`. It is on the disk then.
        Raises OSError, and ValueError for a rule that weighs no version."""
        if (known := self._versions.get(group)) is not None:
            return known
        past = [self._past(version) for version in sorted(versions)]
        version = drawn(self._rule, past, f"{self._key}/{group}")
        self._write(Drawn(group, version))
        os.fsync(self._file.fileno())
        self._versions[group] = version
        return version

    def end(self, game: int, version: int, reward: float) -> None:
        """Note the reward of a version in a game, which counts once. Raises OSError."""
        self._rewards[version][game] = reward
        self._write(Ended(game, version, reward))

    def _past(self, version: int) -> PastVersion:
        rewards = self._rewards[version]
        return PastVersion(version, len(rewards), sum(rewards.values()) / max(1, len(rewards)))

    def _write(self, line: Drawn | Ended) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def _read(self, path: Path) -> bool:
        """Read what is there; True if the last line was cut off by a kill."""
        try:
            *lines, rest = read_regular(path, BYTES).split(b"\n")
        except FileNotFoundError:
            return False
        decode = msgspec.json.Decoder(Drawn | Ended).decode
        for line in lines:
            try:
                known = decode(line)
            except msgspec.DecodeError:
                continue  # it was cut off by an earlier kill
            if isinstance(known, Drawn):
                self._versions.setdefault(known.group, known.version)
            else:
                self._rewards[known.version][known.game] = known.reward
        return bool(rest)
