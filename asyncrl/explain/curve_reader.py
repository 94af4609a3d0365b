"""Reader of a curve that grows: each time it gives the points that were added since the last one.

A resumed run replaces the file (`curve.trim`): then the reader begins again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from asyncrl.explain.curve import LINE_BYTES, Point, point_of


class CurveReader:
    """Reads the curve at `path`, which may not be there yet.

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
        self._file: tuple[int, int] | None = None  # the device and number of what was read
        self._at = 0  # bytes that were read

    def replaced(self) -> bool:
        """True if the file is another one than was read last, also the first time that it is
        there: `added` begins with its first point. Raises OSError."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        same = (found.st_dev, found.st_ino) == self._file and found.st_size >= self._at
        if not same:
            self._file, self._at = (found.st_dev, found.st_ino), 0
        return not same

    def added(self) -> Iterator[Point]:
        """The points behind those that were given, but for a line that is being written; none of
        a file that was not asked of (`replaced`), or is gone. Raises OSError."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            found = os.fstat(file.fileno())
            if (found.st_dev, found.st_ino) != self._file:
                return
            file.seek(self._at)
            while line := file.readline(LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                    return
                self._at += len(line)
                if (point := point_of(line)) is not None:
                    yield point
