"""Rows that are lines of JSON, read when they are asked for. Only eight bytes a line are kept: its
offset."""

from __future__ import annotations

import json
import os
import weakref
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec
import numpy as np

from asyncrl.files import open_regular
from asyncrl.tasks import TaskError
from asyncrl.tasks.data.kept_files import SMALL, kept
from asyncrl.tasks.data.unpacked_lines import (
    BOM,
    HEAD,
    ROW_BYTES,
    opened_bytes,
    shape_of,
    write_lines,
)
from asyncrl.words import beyond_reading

_PIECE = 2**24
"""Bytes that are looked at for ends of lines at a time."""
_END, _WHITE = 10, (9, 10, 11, 12, 13, 32)
"""The byte that ends a line, and those that are white space."""


class Bytes(Protocol):
    """Bytes that are read when they are asked for.

    >>> data: Bytes = _Memory(memoryview(b"1 + 1 ="))
    >>> data.read(4, 99), data.size
    (b'1 =', 7)
    """

    @property
    def size(self) -> int: ...

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end), fewer at the end."""
        ...


class _Memory:
    def __init__(self, data: memoryview) -> None:
        self._data, self.size = data, data.nbytes

    def read(self, start: int, end: int) -> bytes:
        return bytes(self._data[start:end])


class _OpenFile:
    """A file of the user's, open as long as its rows. It is not mapped: one that is cut off later
    would end the process."""

    def __init__(self, path: Path) -> None:
        self._file = open_regular(path)
        weakref.finalize(self, self._file.close)
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, start: int, end: int) -> bytes:
        return os.pread(self._file.fileno(), end - start, start)


class LineRows:
    """The rows of a file that is JSON lines, or an array or a table, which may be packed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (path := Path(folder, "a.csv")).write_text("question,answer\\n1 + 1?,2\\n")
    ...     LineRows(path).row(0)
    {'question': '1 + 1?', 'answer': '2'}
    """

    def __init__(self, path: Path) -> None:
        """Raises TaskError where the file cannot be turned into lines, and OSError."""
        with opened_bytes(path) as (data, packed):
            shape = shape_of(path, data.read(HEAD))
        self._path, self._table = path, shape == "table"
        self._lines = shape == "lines"
        self._data: Bytes
        if self._lines and not packed:
            self._data = _OpenFile(path)
        else:
            self._data = _Memory(kept(path, shape, lambda out: write_lines(path, shape, out)))
        self.small = self._data.size <= SMALL
        if self.small:
            self._starts = memoryview(b"".join(_starts(self._data))).cast("Q")
        else:
            index = kept(path, f"index of {shape}", self._write_index, large=True)
            self._starts = index.cast("Q")
        self._numbers = _numbers(self._data, self._starts) if self.small and self._lines else None

    def __len__(self) -> int:
        return len(self._starts)

    def row(self, index: int) -> Any:
        """A row. Raises LookupError if it cannot be read, with the reason as the end of a
        sentence."""
        start = self._starts[index]
        end = self._starts[index + 1] if index + 1 < len(self._starts) else self._data.size
        # empty lines may follow
        line = self._data.read(start, min(end, start + ROW_BYTES + 1)).partition(b"\n")[0]
        if len(line) > ROW_BYTES:
            raise LookupError(f"it is longer than {ROW_BYTES >> 20} MiB; each row is one prompt")
        value = decoded(line)
        if self._table and isinstance(value, str):
            raise LookupError(value)
        return value

    def place(self, index: int) -> str:
        """The place of a row, in words."""
        if not self._lines:
            return f"{self._path}, row {index + 1}"
        if self._numbers is None:
            return f"{self._path}, the line at byte {self._starts[index]}"
        return f"{self._path}, line {self._numbers[index]}"

    def _write_index(self, out: BinaryIO) -> None:
        for piece in _starts(self._data):
            out.write(piece)


def decoded(line: bytes) -> Any:
    """A line of JSON, in which NaN and Infinity may stand. Raises LookupError.

    >>> decoded(b'{"answer": 4, "difficulty": NaN}')
    {'answer': 4, 'difficulty': nan}
    """
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if beyond_reading(error):
            raise LookupError(
                "a number in it is too large to be read: write it as text, in quotes"
            ) from error
        if b"NaN" in line or b"Infinity" in line:
            try:
                return json.loads(line)
            except (ValueError, RecursionError):
                pass
        if line.strip() in (b"{", b"[{"):
            raise LookupError(
                "it begins one JSON object of several lines: write a list of rows, as "
                "[{…}, {…}], or each row on one line"
            ) from error
        raise LookupError(f"it is no JSON: {error}") from error


def _starts(data: Bytes) -> Iterator[bytes]:
    """Yield the offsets of lines that have more than white space, as `uint64`, piece by piece."""
    at = len(BOM) if data.read(0, len(BOM)) == BOM else 0
    waiting = np.array([at], np.int64)
    while piece := data.read(at, at + _PIECE):
        block = np.frombuffer(piece, np.uint8)
        starts = np.concatenate([waiting, np.flatnonzero(block == _END) + at + 1])
        inside = starts < at + len(block)
        starts, waiting = starts[inside], starts[~inside]
        doubtful = np.isin(block[starts - at], _WHITE)
        if doubtful.any():
            more = [start for start in starts[doubtful].tolist() if _has_text(data, start)]
            starts = np.sort(np.concatenate([starts[~doubtful], np.array(more, np.int64)]))
        yield starts.astype("<u8").tobytes()
        at += len(block)


def _has_text(data: Bytes, start: int) -> bool:
    """True of a line that has more than white space."""
    size = 64
    while True:
        line, end, _ = (block := data.read(start, start + size)).partition(b"\n")
        if line.strip():
            return True
        if end or len(block) < size:
            return False
        size *= 4


def _numbers(data: Bytes, starts: memoryview) -> array[int]:
    """The number of each line in its file, from 1."""
    ends = np.flatnonzero(np.frombuffer(data.read(0, data.size), np.uint8) == _END)
    numbers = np.searchsorted(ends, np.asarray(starts), "left") + 1
    return array("Q", numbers.astype("<u8").tobytes())


def refuse_empty(rows: int, path: str) -> None:
    """Raise TaskError for a data set without rows."""
    if not rows:
        raise TaskError(f"{path} has no rows; each is an object with prompt and answer")
