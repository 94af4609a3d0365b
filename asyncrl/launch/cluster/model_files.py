"""The files of a model that an engine needs before it gets weights: settings and tokenizer."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
"""Endings of the names of weight files, which engines do not need: weights are sent to them."""
MOST_FILES = 256
MOST_BYTES = 64 * 2**20
"""Bounds of a transfer: files, and bytes of each."""


def model_files(model: Path) -> list[tuple[str, bytes]]:
    """Names and contents of the files in the directory `model` that are not weights, in the order
    of their names. A larger one than MOST_BYTES is left out."""
    paths = [
        path
        for path in sorted(model.iterdir())
        if path.is_file()
        and not path.name.endswith(WEIGHTS)
        and 0 < path.stat().st_size <= MOST_BYTES
    ]
    return [(path.name, path.read_bytes()) for path in paths[:MOST_FILES]]


def keep_file(model: Path, name: str, contents: bytes | memoryview) -> None:
    """Write a received file to the directory `model`. Raises ValueError if its name leads out of
    it."""
    if Path(name).name != name or name in (".", ".."):
        raise ValueError(f"{name!r} is not a file name")
    (model / name).write_bytes(contents)
