"""Rewards that a judge gave, by the contents that it judged, in a file of the run.

Invariant: the file grows to a bounded number of lines, and a line that is not as it was written is
left out; so a file that is damaged or another program's costs questions, and never a wrong reward.

The first line is HEADER. Each other has a key, a reward, and a digest of both.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import OrderedDict
from pathlib import Path

from asyncrl.files import open_growing, read_regular, write_whole

HEADER = "asyncrl judge verdicts 1"
LINE_BYTES = 100
"""Bytes of a line, at most."""
GROWTH = 2
"""Times the entries that are kept may lines be in the file, before it is written again."""

logger = logging.getLogger(__name__)


class VerdictCache:
    """The `most` newest rewards by key. With a `path`, they are those of an earlier start too.

    >>> cache = VerdictCache(None, most=1)
    >>> cache.put("a", 0.5)
    >>> cache.put("b", 1.0)
    >>> cache.get("a"), cache.get("b")
    (None, 1.0)
    """

    def __init__(self, path: Path | None, most: int) -> None:
        self._path, self._most = path if most else None, most
        self._rewards = OrderedDict[str, float]()
        self._lines = 0
        if self._path is not None:
            self._read(self._path)

    def __len__(self) -> int:
        return len(self._rewards)

    def get(self, key: str) -> float | None:
        """The reward of these contents; None if it is not known."""
        return self._rewards.get(key)

    def put(self, key: str, reward: float) -> None:
        """Keep a reward. On a disk that takes nothing it is kept in memory alone."""
        self._keep(key, reward)
        if self._path is None:
            return
        try:
            if not self._lines or self._lines >= GROWTH * self._most + 1:
                self._write_all(self._path)
            else:
                with open_growing(self._path) as file:
                    file.write(_line(key, reward).encode())
                self._lines += 1
        except OSError as error:
            logger.warning("judged answers are kept in memory alone: %s", error)
            self._path = None

    def _keep(self, key: str, reward: float) -> None:
        self._rewards[key] = reward
        self._rewards.move_to_end(key)
        while len(self._rewards) > self._most:
            self._rewards.popitem(last=False)

    def _write_all(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        lines = (_line(key, reward) for key, reward in self._rewards.items())
        write_whole(path, f"{HEADER}\n{''.join(lines)}", forced=False)
        self._lines = 1 + len(self._rewards)

    def _read(self, path: Path) -> None:
        """Read what an earlier start left. A file of another form is left out, and written over at
        the first reward."""
        try:
            data = read_regular(path, LINE_BYTES * (GROWTH * self._most + 2))
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("judged answers of earlier starts are asked for again: %s", error)
            return
        head, *lines = data.split(b"\n")
        if head != HEADER.encode():
            logger.warning(
                "judged answers of earlier starts are asked for again: %s is not a file of them",
                path,
            )
            return
        known = [entry for line in lines if line if (entry := _entry(line)) is not None]
        for key, reward in known:
            self._keep(key, reward)
        if damaged := sum(map(bool, lines)) - len(known):
            logger.warning("%d lines of %s are damaged, and left out", damaged, path)
        elif data.endswith(b"\n"):
            self._lines = 1 + len(known)  # else it is written again before it grows


def _line(key: str, reward: float) -> str:
    text = f"{key} {reward!r}"
    return f"{text} {_digest(text)}\n"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _entry(line: bytes) -> tuple[str, float] | None:
    """The key and reward of a line; None if it is not as it was written."""
    try:
        text, _, digest = line.decode("ascii").rpartition(" ")
        key, _, number = text.partition(" ")
        reward = float(number)
    except ValueError:
        return None
    return (key, reward) if digest == _digest(text) and math.isfinite(reward) else None
