"""Rollouts in a file of their own: lines of JSON (`FILE.jsonl`), or Parquet (`FILE.parquet`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import msgspec

from asyncrl.config import ConfigError
from asyncrl.config.errors import installs, usable
from asyncrl.config.paths import refuse_as_output
from asyncrl.escape import escaped_json
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.orchestration import trace_of
from asyncrl.explain.views.rollout_records import (
    RolloutRecord,
    Wanted,
    newest,
    record,
)
from asyncrl.explain.views.run_texts import Note, run_texts
from asyncrl.files import whole_file

ROWS = 1_000
"""Rollouts of a row group of Parquet: what is held in memory."""


class JsonLines:
    """A line of JSON a rollout, in ASCII."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, one: RolloutRecord) -> None:
        self._file.write(escaped_json(one).encode() + b"\n")

    def close(self) -> None:
        pass


class ParquetRows:
    """Columns of Parquet with the names of a line's fields; `spans` is a list of structs."""

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow
        from pyarrow import parquet

        self._arrow = pyarrow
        whole, text = pyarrow.int64(), pyarrow.string()
        places = [(name, whole) for name in ("version", "start", "end")]
        span = pyarrow.struct([*places, ("source", text)])
        call = pyarrow.struct([("name", text), ("arguments", text)])
        message = pyarrow.struct(
            [
                *((name, text) for name in ("role", "text", "thoughts", "failed")),
                *(("sampled", whole), ("follows", whole), ("calls", pyarrow.list_(call))),
            ]
        )
        types = {
            "spans": pyarrow.list_(span),
            "reward": pyarrow.float64(),
            "failures": pyarrow.list_(text),
            "images": pyarrow.list_(text),
            "failed_calls": pyarrow.map_(text, whole),
            "left_out": pyarrow.map_(text, whole),
            "places": pyarrow.map_(text, pyarrow.list_(pyarrow.list_(whole))),
            "printed": pyarrow.map_(whole, text),
            "messages": pyarrow.list_(message),
        }
        numbers = ("rollout", "group", "prompt_index", "attempts", "turns", "tokens", "step", "lag")
        types |= dict.fromkeys(numbers, whole)
        names = [field.name for field in msgspec.structs.fields(RolloutRecord)]
        self._schema = pyarrow.schema([(name, types.get(name, text)) for name in names])
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def add(self, one: RolloutRecord) -> None:
        row = msgspec.structs.asdict(one)
        row["spans"] = [msgspec.structs.asdict(span) for span in one.spans]
        row["failed_calls"] = [*one.failed_calls.items()]
        row["left_out"] = [*one.left_out.items()]
        row["places"] = [*row["places"].items()]
        row["printed"] = [*one.printed.items()]
        row["messages"] = [
            msgspec.structs.asdict(m) | {"calls": [*map(msgspec.structs.asdict, m.calls)]}
            for m in one.messages
        ]
        self._rows.append(_whole(row))
        if len(self._rows) == ROWS:
            self._flush()

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows.clear()


def _whole(value: Any) -> Any:
    """A value in whose texts each character is whole."""
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case list():
            return [_whole(one) for one in value]
        case tuple():
            return tuple(map(_whole, value))
        case dict():
            return {name: _whole(one) for name, one in value.items()}
    return value


def write_traces(files: RunFiles, wanted: Wanted, path: Path) -> int:
    """Write the episodes that fit to a new file, a line of JSON each: their orchestration traces.
    Returns their number. Raises ConfigError."""
    refuse_as_output(path)
    count = 0
    with usable(path, "written"), whole_file(path) as file:
        for seen in newest(files, wanted, None):
            if seen.turns:
                file.write(escaped_json(trace_of(seen)).encode() + b"\n")
                count += 1
    return count


def write_records(files: RunFiles, wanted: Wanted, path: Path, note: Note) -> int:
    """Write the rollouts that fit to a new file, the newest first, whole or not at all; returns
    their number. They are written as they are read. Raises ConfigError."""
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise ConfigError(
            f"{path}: Parquet needs the package pyarrow: {installs('parquet')}, or write "
            "FILE.jsonl."
        )
    refuse_as_output(path)
    texts, count = run_texts(files, note), 0
    with usable(path, "written"), whole_file(path) as file:
        writer = (ParquetRows if path.suffix == ".parquet" else JsonLines)(file)
        for seen in newest(files, wanted, None):
            writer.add(record(seen, texts))
            count += 1
        writer.close()
    return count
