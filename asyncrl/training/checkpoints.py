"""Which checkpoints a run has. Invariant: a directory that has a checkpoint's name is a complete checkpoint.

Nothing here imports torch: the coordinator asks which checkpoint is the latest, and which event it belongs to.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

SCALARS = "trainer.json"
_FOLDER = "checkpoints"
_NAME = re.compile(r"step-(\d{6,})")


class CheckpointError(Exception):
    """A checkpoint that cannot be written or used; the message is one sentence for a person."""


class Scalars(msgspec.Struct, frozen=True):
    """`version` of the weights, and `cursor`, the number of the last journalled event they belong to."""

    version: int
    cursor: int


def place(run_dir: str | Path, version: int) -> Path:
    """Where the checkpoint of `version` is, or will be."""
    return Path(run_dir) / _FOLDER / f"step-{version:06d}"


def complete(run_dir: str | Path) -> list[Path]:
    """Every complete checkpoint of a run, oldest version first."""
    folder = Path(run_dir) / _FOLDER
    names = [name for name in map(_NAME.fullmatch, (path.name for path in folder.iterdir())) if name] if folder.is_dir() else []
    return [folder / name[0] for name in sorted(names, key=lambda name: int(name[1]))]


def latest(run_dir: str | Path) -> Path | None:
    """The newest complete checkpoint of a run, None where there is none."""
    return next(reversed(complete(run_dir)), None)


def scalars(path: str | Path) -> Scalars:
    """What a checkpoint says of itself. Raises CheckpointError."""
    file = Path(path) / SCALARS
    try:
        return msgspec.json.decode(file.read_bytes(), type=Scalars)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"training cannot go on from {path}, because {file.name} cannot be read: {error}") from error
