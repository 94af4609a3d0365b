"""The files of a model that an engine needs before it is sent weights: settings and tokenizer."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
"""Ends of the names of files that engines do without: they are sent weights."""
MOST_FILES = 256
MOST_BYTES = 64 * 2**20
"""Bounds of what is sent: files, and bytes of each."""


def model_files(model: Path) -> list[tuple[str, bytes]]:
    """Names and contents of the files in the directory `model` that are not weights, in the order
    of their names. A larger one than MOST_BYTES is left out."""
    found = [
        path
        for path in sorted(model.iterdir())
        if path.is_file()
        and not path.name.endswith(WEIGHTS)
        and 0 < path.stat().st_size <= MOST_BYTES
    ]
    return [(path.name, path.read_bytes()) for path in found[:MOST_FILES]]


def keep_file(model: Path, name: str, contents: bytes | memoryview) -> None:
    """Keep a file that was sent in the directory `model`. Raises ValueError where its name leads
    elsewhere."""
    if Path(name).name != name or name in (".", ".."):
        raise ValueError(f"{name!r} is no name of a file")
    (model / name).write_bytes(contents)
