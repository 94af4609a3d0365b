"""Files of other formats as lines of JSON: packed ones, arrays, and tables. Invariant: nothing of a
file is in memory but a piece of it."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Literal, TextIO, cast

import msgspec

from asyncrl.escape import escaped
from asyncrl.files import open_regular
from asyncrl.tasks import TaskError
from asyncrl.tasks.data.arrow_library import arrow

if TYPE_CHECKING:
    from typing_extensions import Buffer

ROW_BYTES = 16 * 2**20
"""Bytes of a row, at most."""
HEAD = 2**16
"""Bytes by which the format of a file is told."""
Shape = Literal["lines", "array", "table"]
PIECE = 2**18
"""Characters that are read at a time."""
BOM = codecs.BOM_UTF8


class _ReadBytes(io.RawIOBase):
    """Bytes of a function that reads at most so many."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        super().__init__()
        self._read = read

    def readable(self) -> bool:
        return True

    def readinto(self, into: Buffer, /) -> int:
        view = memoryview(into).cast("B")
        data = self._read(len(view))
        view[: len(data)] = data
        return len(data)


def _zstd(file: BinaryIO) -> BinaryIO:
    pyarrow = arrow("a file of zstd")
    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file), "zstd")
    return io.BufferedReader(_ReadBytes(stream.read))


def _utf16(file: BinaryIO) -> BinaryIO:
    text = io.TextIOWrapper(file, "utf-16", newline="")
    return io.BufferedReader(_ReadBytes(lambda size: text.read(max(1, size // 4)).encode()))


PACKED: Mapping[bytes, tuple[str, Callable[[BinaryIO], BinaryIO]]] = MappingProxyType(
    {
        b"\x1f\x8b": ("gzip", lambda file: cast(BinaryIO, gzip.GzipFile(fileobj=file))),
        b"\x28\xb5\x2f\xfd": ("zstd", _zstd),
        b"BZh": ("bzip2", lambda file: cast(BinaryIO, bz2.BZ2File(file))),
        b"\xfd7zXZ\x00": ("xz", lambda file: cast(BinaryIO, lzma.LZMAFile(file))),  # noqa: SIM115
        b"\xff\xfe": ("UTF-16", _utf16),
        b"\xfe\xff": ("UTF-16", _utf16),
    }
)
"""First bytes of a packed file, with the name of its format and what unpacks it."""
FOREIGN: Mapping[bytes, str] = MappingProxyType(
    {
        b"PK\x03\x04": "a zip archive or a workbook: unpack it, or save its table as CSV",
        b"PAR1": "a Parquet file that is packed once more: unpack it",
        b"SQLite": "a database: write its rows as lines of JSON",
        b"\x89HDF": "a file of HDF5: write its rows as lines of JSON",
        b"%PDF": "a PDF: give rows of prompts",
        b"\x80\x04\x95": "a pickle, which is code: write its rows as lines of JSON",
    }
)
"""First bytes of files that are not read, in words."""


@contextmanager
def opened_bytes(path: Path) -> Iterator[tuple[BinaryIO, str]]:
    """The contents of a file, unpacked, and the format that it was packed in, if any. Raises
    TaskError where these are not what the format says, and OSError."""
    with open_regular(path) as file:
        head = file.read(8)
        file.seek(0)
        name, unpack = next(
            (found for begin, found in PACKED.items() if head.startswith(begin)), ("", None)
        )
        try:
            yield (cast(BinaryIO, file) if unpack is None else unpack(cast(BinaryIO, file))), name
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise TaskError(_broken(path, name, error)) from error
        except (OSError, UnicodeError) as error:
            if not name or getattr(error, "errno", None):  # the disk's
                raise
            raise TaskError(_broken(path, name, error)) from error


def _broken(path: Path, name: str, error: Exception) -> str:
    return (
        f"{path} is a file of {name} that cannot be unpacked ({error}): it is cut off or damaged; "
        "fetch it again"
    )


def shape_of(path: Path, head: bytes) -> Shape:
    """The format of a text, by its first bytes and the name of its file. Raises TaskError for what
    is no text.

    >>> [shape_of(Path("a"), head) for head in (b' [{"a": 1}]', b"a,b\\n1,2", b'{"a": 1}')]
    ['array', 'table', 'lines']
    """
    for begin, words in FOREIGN.items():
        if head.startswith(begin):
            raise TaskError(f"{path} is {words}")
    text = head.removeprefix(BOM).lstrip()
    if text[:1] == b"[":
        return "array"
    if text[:1] == b"{":
        return "lines"
    if {".csv", ".tsv", ".tab"} & {suffix.casefold() for suffix in path.suffixes}:
        return "table"
    return "table" if _header(text) else "lines"


def _header(text: bytes) -> bool:
    """True of a text whose first line is that of a table."""
    if b"\0" in text or b"\n" not in text:
        return False
    first = text.partition(b"\n")[0].decode(errors="replace").strip()
    names = next(csv.reader([first], delimiter=delimiter(first)), [])
    plain = [name.strip().replace("_", "").replace(" ", "").replace(".", "") for name in names]
    return len(names) > 1 and all(name.isalnum() for name in plain)


def delimiter(header: str) -> str:
    """The mark between the columns of a table, by its first line.

    >>> delimiter("question\\tanswer"), delimiter('"a;b",c')
    ('\\t', ',')
    """
    bare = "".join(header.split('"')[::2])
    return max(",\t;|", key=bare.count)


def write_lines(path: Path, shape: Shape, out: BinaryIO) -> None:
    """Write the rows of a file as lines of JSON. Raises TaskError, and OSError."""
    with opened_bytes(path) as (data, _):
        if shape == "lines":
            shutil.copyfileobj(data, out)
            return
        text = io.TextIOWrapper(data, "utf-8-sig", newline="")
        try:
            (_write_array if shape == "array" else _write_table)(path, text, out)
        except UnicodeDecodeError as error:
            raise TaskError(
                f"{path} is no UTF-8 text ({error.reason}): save it as UTF-8"
            ) from error
        finally:
            text.detach()


def _write_array(path: Path, text: TextIO, out: BinaryIO) -> None:
    """Write the elements of an array, each as a line."""
    decode = json.JSONDecoder().raw_decode
    waiting, row, begun = "", 0, False
    while True:
        waiting = waiting.lstrip(" \t\r\n")
        if not waiting and not (waiting := text.read(PIECE)):
            raise TaskError(f"{path} ends within its array, behind row {row}: it is cut off")
        mark = waiting.lstrip(" \t\r\n")[:1]
        if not begun or mark == ",":
            begun, waiting = True, waiting.lstrip(" \t\r\n")[1:]
            continue
        if mark == "]":
            if (waiting.lstrip(" \t\r\n")[1:] + text.read(PIECE)).strip():
                raise TaskError(f"{path} goes on behind the end of its array: remove what is there")
            return
        if not mark:
            waiting = ""
            continue
        waiting, end = _grown(path, row + 1, waiting.lstrip(" \t\r\n"), text, decode)
        out.write(waiting[:end].replace("\n", " ").replace("\r", " ").encode(errors="replace"))
        out.write(b"\n")
        waiting, row = waiting[end:], row + 1


def _grown(
    path: Path, row: int, waiting: str, text: TextIO, decode: Callable[[str], tuple[object, int]]
) -> tuple[str, int]:
    """Read on until the text begins with a whole value; returns it and the end of the value."""
    step = PIECE
    while True:
        try:
            _, end = decode(waiting)
            if end < len(waiting):  # a number may go on in what follows
                return waiting, end
            why = "it has no end"
        except (ValueError, RecursionError) as error:
            why = str(error) or type(error).__name__
        more = text.read(step) if len(waiting) < ROW_BYTES else ""
        if not more:
            raise TaskError(f"{path}, row {row}: its JSON cannot be read: {why}")
        waiting, step = waiting + more, 2 * step


def refuse_twice(path: Path, columns: Sequence[str]) -> None:
    """Raise TaskError for a table with two columns of one name, of which each row would have the
    last."""
    if twice := [name for name, many in Counter(columns).items() if many > 1]:
        raise TaskError(
            f"{path} has several columns with the name {escaped(twice[0], 40)}: rename all but one"
        )


def _write_table(path: Path, text: TextIO, out: BinaryIO) -> None:
    """Write the rows of a table, each as a line: an object by the names in the first row, or a
    sentence where it does not fit them."""
    header = text.readline(HEAD)
    marked = delimiter(header)
    before = csv.field_size_limit(ROW_BYTES)
    try:
        names = [name.strip() for name in next(csv.reader([header], delimiter=marked), [])]
        if not names or not all(names):
            raise TaskError(f"{path} is a table whose first row does not name each column")
        refuse_twice(path, names)
        for row in csv.reader(text, delimiter=marked):
            if not row:
                continue
            good = len(row) == len(names)
            value: object = dict(zip(names, row, strict=True)) if good else _cells(row, names)
            out.write(msgspec.json.encode(value) + b"\n")
    except csv.Error as error:
        raise TaskError(f"{path} is a table that cannot be read: {error}") from error
    finally:
        csv.field_size_limit(before)


def _cells(row: list[str], names: list[str]) -> str:
    return f"it has {len(row)} cells, and the first row has {len(names)}: quote those with a mark"
