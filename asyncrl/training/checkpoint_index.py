"""The checkpoints of a run, and a check of each. Invariant: a directory was complete when it got
the name of a checkpoint.

`verify` finds damage since then. Nothing here imports torch, since the coordinator uses it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from asyncrl.files import JSON_BYTES, open_regular, read_regular

SCALARS = "trainer.json"
FOLDER = "checkpoints"
NAME = r"step-([0-9]{6}|[1-9][0-9]{6,17})"
"""The names of checkpoints, one a version: in the digits 0 to 9, six or more."""
MOST_BYTES = 2**50
"""Bytes of a file, at most."""
_NAME = re.compile(NAME)


class CheckpointError(Exception):
    """Raised for a checkpoint that cannot be written or used; the message is one sentence. Of one
    that cannot be written it ends with what to do."""


class Digest(msgspec.Struct, frozen=True):
    """Size and hash of a file when it was written: 128 bits of BLAKE2b, in hex, which is faster
    than SHA-256 where the processor has no instructions for that, and as fast where it has."""

    size: Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]
    blake2b: str


class Scalars(msgspec.Struct, frozen=True):
    """`version` of the weights, `cursor`, the number of the last journalled event that they
    include, and every other file by its name. `base`: the digest of the model that the weights are
    adapters of; empty where they are whole."""

    version: int
    cursor: int
    files: dict[str, Digest] = {}
    base: str = ""


class Checkpoint(msgspec.Struct, frozen=True):
    """One of a run's checkpoints."""

    path: Path
    version: int

    def verify(self) -> None:
        """Read all files. Raises CheckpointError where one differs from what was written."""
        for name, digest in scalars(self.path).files.items():
            if name in ("", "..") or Path(name).name != name:
                raise CheckpointError(
                    f"{self.path} is damaged: it names a file elsewhere ({name!r})"
                )
            try:
                actual = digested(self.path / name)
            except OSError as error:
                raise CheckpointError(
                    f"{self.path} is damaged: {name} cannot be read: {error.strerror}"
                ) from error
            if actual != digest:
                raise CheckpointError(
                    f"{self.path} is damaged: {name} differs from what was written"
                )

    def set_aside(self) -> None:
        """Rename it, so that nothing starts from it, and keep it for inspection."""
        aside = self.path.with_name(f".aside-{self.path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        self.path.rename(aside)


def digested(contents: Path | bytes) -> Digest:
    """The size and hash of a file, or of bytes. Raises OSError."""
    hashed = partial(hashlib.blake2b, digest_size=16)
    if isinstance(contents, bytes):
        return Digest(len(contents), hashed(contents).hexdigest())
    with open_regular(contents) as file:
        digest = hashlib.file_digest(file, hashed)
        return Digest(os.fstat(file.fileno()).st_size, digest.hexdigest())


def checkpoint_path(run_dir: str | Path, version: int) -> Path:
    """Path of the checkpoint of `version`, written or not."""
    return Path(run_dir) / FOLDER / f"step-{version:06d}"


def complete(run_dir: str | Path) -> list[Checkpoint]:
    """Every complete checkpoint of a run, oldest version first."""
    folder = Path(run_dir) / FOLDER
    names = (
        [name for name in map(_NAME.fullmatch, (path.name for path in folder.iterdir())) if name]
        if folder.is_dir()
        else []
    )
    return sorted(
        (Checkpoint(folder / name[0], int(name[1])) for name in names),
        key=lambda checkpoint: checkpoint.version,
    )


def latest(run_dir: str | Path) -> Path | None:
    """The newest complete checkpoint of a run, None where there is none."""
    return next((checkpoint.path for checkpoint in reversed(complete(run_dir))), None)


def scalars(path: str | Path) -> Scalars:
    """Read the scalars of a checkpoint. Raises CheckpointError."""
    file = Path(path) / SCALARS
    try:
        return msgspec.json.decode(read_regular(file, JSON_BYTES), type=Scalars)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(
            f"training cannot resume from {path}, because {file.name} cannot be read: {error}"
        ) from error
