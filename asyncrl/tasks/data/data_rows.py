"""The rows of a path, whatever its format."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from asyncrl.config.paths import is_hub_name
from asyncrl.files import held_bytes, open_regular
from asyncrl.os_errors import machine_lacks
from asyncrl.tasks import TaskError
from asyncrl.tasks.data.arrow_rows import FILE, PARQUET, STREAM, ArrowRows
from asyncrl.tasks.data.data_files import data_files
from asyncrl.tasks.data.hub_rows import HubRows
from asyncrl.tasks.data.line_rows import LineRows, refuse_empty


class Rows(Protocol):
    """Rows of data, numbered from 0.

    >>> rows: Rows = open_rows("docs/examples/own_data/prompts.jsonl")
    >>> sorted(rows.row(0)), rows.place(0).partition(", ")[2]
    (['answer', 'prompt'], 'line 1')
    """

    @property
    def small(self) -> bool:
        """True if all rows can be looked at, at the start."""
        ...

    def __len__(self) -> int: ...

    def row(self, index: int) -> Any:
        """A row. Raises LookupError if it cannot be read, with the reason as the end of a
        sentence."""
        ...

    def place(self, index: int) -> str:
        """The place of a row, in words."""
        ...


class JoinedRows:
    """The rows of several files, one after the other, and a sentence on them, if one is needed.

    >>> rows = open_rows("docs/examples/own_data/prompts.jsonl")
    >>> len(JoinedRows([rows, rows])) == 2 * len(rows)
    True
    """

    def __init__(self, parts: Sequence[Rows], note: str = "", folders: Sequence[Path] = ()) -> None:
        self._parts, self.note, self._folders = parts, note, folders
        self._ends = list(accumulate(map(len, parts)))
        self.small = all(part.small for part in parts) and len(parts) < 64

    def __len__(self) -> int:
        return self._ends[-1]

    def row(self, index: int) -> Any:
        part, own = self._own(index)
        return part.row(own)

    def place(self, index: int) -> str:
        part, own = self._own(index)
        return part.place(own)

    def folder(self, index: int) -> Path | None:
        """The folder of a row's file; None for rows of no file."""
        if not self._folders:
            return None
        return self._folders[bisect_right(self._ends, index)]

    def _own(self, index: int) -> tuple[Rows, int]:
        part = bisect_right(self._ends, index)
        return self._parts[part], index - (self._ends[part - 1] if part else 0)


def open_rows(path: str) -> JoinedRows:
    """The rows of a file, a folder, a pattern, or a data set by its name. Raises TaskError."""
    if is_hub_name(path):
        return JoinedRows([HubRows(path)])
    files = data_files(path)
    try:
        rows = JoinedRows(
            [_of_file(file) for file in files.paths],
            files.note,
            [file.parent for file in files.paths],
        )
    except OSError as error:
        if machine_lacks(error):
            raise
        raise TaskError(
            f"{error.filename or path} cannot be read: {error.strerror}; task.path and "
            "task.eval_path name files of rows"
        ) from error
    refuse_empty(len(rows), path)
    return rows


def _of_file(path: Path) -> Rows:
    with open_regular(path) as file:
        head, size = file.read(8), os.fstat(file.fileno()).st_size
    if (held := held_bytes(path)) < size:
        raise TaskError(
            f"{path} has holes: {held:,} of its {size:,} bytes were ever written, as by a download "
            "that was broken off; fetch it again"
        )
    arrow = head.startswith((PARQUET, FILE, STREAM))
    return ArrowRows(path) if arrow else LineRows(path)
