"""The past versions that a frozen policy holds, as model directories. Invariant: a directory with
the name of a version is whole.

Those of a policy that is trained are links to the files of its checkpoints, which outlive these.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from asyncrl.training.checkpoint_index import Checkpoint
from asyncrl.training.model_writing import of_model

FOLDER = "versions"
_NAME = re.compile(r"v([0-9]{1,18})")
_TRAINER = "trainer."
"""Start of the names of a checkpoint's files that are no part of the model."""


def kept_versions(run: Path) -> dict[int, Path]:
    """The versions that are kept in a frozen policy's directory."""
    folder = run / FOLDER
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return {int(name[1]): folder / name[0] for name in names if name}


def keep_version(run: Path, checkpoint: Checkpoint) -> Path:
    """Keep the model of a checkpoint. Raises OSError, also for one that is just removed."""
    final = run / FOLDER / f"v{checkpoint.version}"
    work = final.with_name(f".{final.name}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for file in checkpoint.path.iterdir():
        if of_model(file) and not file.name.startswith(_TRAINER):
            os.link(file, work / file.name)
    work.rename(final)
    return final


def forget_version(path: Path) -> None:
    """Remove a version that is kept no more. Raises OSError."""
    gone = path.with_name(f".{path.name}")
    path.rename(gone)
    shutil.rmtree(gone)
