"""Reader of a curve that grows: each time it gives the points that were added since the last one.

A resumed run replaces the file (`curve.trim`): where the last line that was read is cut, the reader
begins again. The number of a file tells no two files apart: a system gives it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from asyncrl.config.errors import usable
from asyncrl.explain.curve import LINE_BYTES, Point, point_of
from asyncrl.files import open_regular

TAIL = 2**17
"""Bytes at the end of a curve in which its last points are looked for."""


class CurveReader:
    """Reads the curve at `path`, which may not be there yet. Its methods raise ConfigError.

    >>> import tempfile
    >>> from asyncrl.explain.curve import EvaluationPoint, line_of
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "metrics.jsonl"
    ...     reader = CurveReader(path)
    ...     for version in (1, 2):
    ...         with path.open("ab") as file:
    ...             point = EvaluationPoint(version=version, at=0.0, seconds=0.0, accuracy=0.5)
    ...             _ = file.write(line_of(point))
    ...         print(reader.replaced(), [point.version for point in reader.added()])
    True [1]
    False [2]
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0  # bytes that were read
        self._last: bytes | None = None  # the last line that was read; None: no file was seen

    def replaced(self) -> bool:
        """True if what was read last is not there any more, also the first time that there is a
        file: `added` begins with its first point."""
        with (
            usable(self._path, "read"),
            suppress(FileNotFoundError),
            open_regular(self._path) as file,
        ):
            if not self._stands(file):
                self._at, self._last = 0, b""
                return True
        return False

    def added(self) -> Iterator[Point]:
        """The points behind those that were given, but for a line that is being written; none of
        a file that was not asked of (`replaced`), or is gone."""
        with (
            usable(self._path, "read"),
            suppress(FileNotFoundError),
            open_regular(self._path) as file,
        ):
            if not self._stands(file):
                return
            while line := file.readline(LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                    return
                self._at, self._last = self._at + len(line), line
                if (point := point_of(line)) is not None:
                    yield point

    def _stands(self, file: BinaryIO) -> bool:
        """True if the file has the last line where it was read; then the next one follows."""
        last = self._last or b""
        file.seek(self._at - len(last))
        return self._last is not None and file.read(len(last)) == last


def last_points(path: Path) -> list[Point]:
    """The points at the end of a curve, the newest first: those in its last TAIL bytes, but for a
    line that is being written; none where there is no curve. Raises ConfigError."""
    with usable(path, "read"), suppress(FileNotFoundError), open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        lines = file.read(TAIL).splitlines(keepends=True)
        found = (point_of(line) for line in reversed(lines) if line.endswith(b"\n"))
        return [point for point in found if point is not None]
    return []
