"""Rows of Parquet and Arrow files. They are unpacked once, into records that any row is read from
at once: a row of a Parquet file costs its whole row group."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from asyncrl.escape import escaped
from asyncrl.files import open_regular
from asyncrl.tasks import TaskError
from asyncrl.tasks.data.arrow_library import arrow
from asyncrl.tasks.data.kept_files import SMALL, kept
from asyncrl.tasks.data.unpacked_lines import refuse_twice

BATCH = 4096
"""Rows of a record."""
PARQUET, FILE, STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
"""First bytes of Parquet files, and of Arrow's two formats."""


class ArrowRows:
    """The rows of a Parquet file, or of an Arrow file, as `datasets` keeps them.

    >>> import pyarrow, tempfile
    >>> from pyarrow import feather
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     feather.write_feather(pyarrow.table({"prompt": ["1 + 1 ="]}), f"{folder}/a.arrow")
    ...     ArrowRows(Path(folder, "a.arrow")).row(0)
    {'prompt': '1 + 1 ='}
    """

    def __init__(self, path: Path) -> None:
        """Raises TaskError where the file is not what its first bytes say, and OSError."""
        pyarrow = arrow(str(path))
        self._path = path
        try:
            data = kept(path, "arrow", lambda out: _unpack(path, out))
            self._reader: Any = pyarrow.ipc.open_file(pyarrow.py_buffer(data))
            sizes = [
                self._reader.get_batch(number).num_rows
                for number in range(self._reader.num_record_batches)
            ]
        except (pyarrow.ArrowException, ValueError, KeyError, NotImplementedError) as error:
            raise TaskError(_unreadable(path, error)) from error
        except OSError as error:
            if error.errno:  # the disk's
                raise
            raise TaskError(_unreadable(path, error)) from error
        self._ends = list(accumulate(sizes))
        self.small = data.nbytes <= SMALL

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def row(self, index: int) -> Any:
        """A row. Raises LookupError if it cannot be read."""
        batch = bisect_right(self._ends, index)
        before = self._ends[batch - 1] if batch else 0
        try:
            (row,) = self._reader.get_batch(batch).slice(index - before, 1).to_pylist()
        except (ValueError, KeyError, OverflowError) as error:
            raise LookupError(f"it cannot be read ({escaped(str(error), 200)})") from error
        return row

    def place(self, index: int) -> str:
        return f"{self._path}, row {index + 1}"


def _unreadable(path: Path, error: Exception) -> str:
    said = escaped(str(error).strip().partition("\n")[0], 200)
    return f"{path} is a damaged file of Parquet or Arrow ({said}): fetch or write it again"


def _unpack(path: Path, out: BinaryIO) -> None:
    """Write the records of a file in Arrow's format, each checked."""
    pyarrow = arrow(str(path))
    with open_regular(path) as file:
        schema, batches = _batches(pyarrow, file)
        refuse_twice(path, schema.names)
        with pyarrow.ipc.new_file(pyarrow.PythonFile(out, "w"), schema) as writer:
            for batch in batches:
                batch.validate(full=True)  # else a lie of the file ends the process
                for start in range(0, batch.num_rows, BATCH):
                    writer.write_batch(batch.slice(start, BATCH))


def _batches(pyarrow: Any, file: BinaryIO) -> tuple[Any, Iterator[Any]]:
    head = file.read(8)
    file.seek(0)
    if head.startswith(PARQUET):
        # no threads: processes that fork read rows, too
        opened = pyarrow.parquet.ParquetFile(pyarrow.PythonFile(file, "r"), pre_buffer=False)
        return opened.schema_arrow, opened.iter_batches(BATCH, use_threads=False)
    opened = (pyarrow.ipc.open_file if head.startswith(FILE) else pyarrow.ipc.open_stream)(file)
    if head.startswith(FILE):
        return opened.schema, map(opened.get_batch, range(opened.num_record_batches))
    return opened.schema, iter(opened)
