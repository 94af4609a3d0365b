"""The files that a path names: one, those of a folder, or those that a pattern fits."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import NamedTuple

from asyncrl.config.errors import ConfigError
from asyncrl.config.paths import is_file, is_folder
from asyncrl.tasks import TaskError

SUFFIXES = frozenset({".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow"})
PACKED = frozenset({".gz", ".zst", ".bz2", ".xz"})
"""Ends of names of the files of a folder that are read."""
_TRAINING = re.compile(r"(?<![a-z])train(?![a-z])")
_HELD_OUT = re.compile(r"(?<![a-z])(test|valid|validation|eval|dev)(?![a-z])")


class DataFiles(NamedTuple):
    """Files in the order of their names, and a sentence on those that were left out.

    >>> DataFiles([Path("a.jsonl")]).note
    ''
    """

    paths: list[Path]
    note: str = ""


def data_files(path: str) -> DataFiles:
    """The files of a path. Raises TaskError where there is none."""
    try:
        if is_folder(Path(path)):
            return _of_folder(path)
        if is_file(Path(path)) or not glob.has_magic(path):
            return DataFiles([Path(path)])
    except ConfigError as error:
        raise TaskError(str(error).removesuffix(".")) from error
    # not Path.glob, which takes no absolute pattern
    found = sorted(Path(name) for name in glob.glob(path, recursive=True))  # noqa: PTH207
    if paths := [one for one in found if one.is_file()]:
        return DataFiles(paths)
    raise TaskError(f"{path} fits no file; task.path is a file, a folder, or a pattern of files")


def _of_folder(path: str) -> DataFiles:
    """The data files of a folder; those for training alone where others are held out by name."""
    paths = sorted(one for one in Path(path).rglob("*") if _is_data(one, Path(path)))
    if not paths:
        raise TaskError(
            f"{path} is a folder without files of rows ({', '.join(sorted(SUFFIXES))}, also packed)"
        )
    names = {one: str(one.relative_to(path)).casefold() for one in paths}
    training = [one for one in paths if _TRAINING.search(names[one])]
    others = [one for one in paths if one not in training and _HELD_OUT.search(names[one])]
    if not training or not others:
        return DataFiles(paths)
    left = ", ".join(one.name for one in others[:3])
    return DataFiles(
        [one for one in paths if one not in others],
        f"files of {path} that are held out by their names are not read ({left}): task.eval_path "
        "can name them",
    )


def _is_data(path: Path, folder: Path) -> bool:
    inner = path.relative_to(folder)
    if any(part.startswith((".", "_")) for part in inner.parts) or not path.is_file():
        return False
    if path.name in ("dataset_info.json", "state.json", "dataset_dict.json", "dataset_infos.json"):
        return False
    suffixes = [suffix.casefold() for suffix in path.suffixes]
    kind = suffixes[-2:-1] if suffixes[-1:] and suffixes[-1] in PACKED else suffixes[-1:]
    return bool(kind) and kind[0] in SUFFIXES and not path.name.startswith(("cache-", "tmp"))
