"""A copy of a run on another disk (`run.copy`): its settings, code of a notebook, journal,
checkpoints and curve, which `asyncrl train --resume COPY` continues. One in an object store is
kept by `stored_copy.py`.

    journal at one moment → the checkpoints and the curve of that moment or later → the names

Invariant: once there is a journal in the copy, the copy can be resumed, whenever the copying is
killed: a checkpoint and a journal get their names when they are whole, and a checkpoint is removed
when the journal with its name needs it no more. The loss of the run's disk loses what was committed
since the start of the last copy that succeeded.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from asyncrl.config import Config
from asyncrl.config.errors import ConfigError
from asyncrl.config.load import read
from asyncrl.config.paths import exists, is_file, is_folder
from asyncrl.journal import JournalError, SqliteHistory
from asyncrl.journal.sqlite import copy as copy_journal
from asyncrl.launch.copied_code import code_files
from asyncrl.launch.stored_copy import copy_to_store, refuse_unfit_store
from asyncrl.object_store import StoreError, is_stored
from asyncrl.runtime.run_dir import CODE, IMAGES, JOURNAL, METRICS, ORIGINS, PACKED, RUN_TOML
from asyncrl.training.checkpoint_index import SCALARS, CheckpointError, checkpoint_path, complete

logger = logging.getLogger(__name__)

_PARTIAL = ".partial"


def refuse_unfit(config: Config, resume: Path | None) -> None:
    """Raise ConfigError if `run.copy` cannot be this run's copy."""
    if not config.run.copy:
        return
    if is_stored(config.run.copy):
        refuse_unfit_store(config.run.copy, Path(config.run.dir), resumed=resume is not None)
        return
    if Path(config.run.copy).is_symlink() and not exists(Path(config.run.copy)):
        raise ConfigError(
            f"run.copy is {config.run.copy!r}, a link to a directory that does not exist; "
            "create it, or choose another one."
        )
    run, copy = Path(config.run.dir).resolve(), Path(config.run.copy).resolve()
    if run == copy or run in copy.parents or copy in run.parents:
        raise ConfigError(
            f"run.copy is {copy}, which is the run directory {run}, or one contains the other; "
            "choose a directory on another disk, or none."
        )
    if exists(copy) and not is_folder(copy):
        raise ConfigError(f"{copy}: run.copy is not a directory; choose another one.")
    if is_folder(copy) and any(copy.iterdir()) and not (resume and _of(copy, config.run.dir)):
        raise ConfigError(
            f"{copy}: run.copy is not empty, and is not a copy of this run; choose another one."
        )
    parent = next(path for path in (copy, *copy.parents) if exists(path))
    if not is_folder(parent) or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{copy}: run.copy cannot be written; choose another one.")


def _of(copy: Path, run: str) -> bool:
    """True if the directory is a copy of that run. Raises ConfigError."""
    toml = copy / RUN_TOML
    return is_file(toml) and read(toml).run.dir == run


async def keep_copy(
    config: Config, over: trio.Event, note: Callable[[str], None], limit_s: float
) -> None:
    """Copy the run every `run.copy_s` seconds, and once more when it is over. A copy that fails, or
    takes more than `limit_s` seconds, is reported by `note`, and the next one is tried."""
    run, copy = Path(config.run.dir), config.run.copy
    bring_up = (
        partial(copy_to_store, run, copy) if is_stored(copy) else partial(copy_run, run, Path(copy))
    )
    limiter = trio.CapacityLimiter(1)  # one copy at a time: one that was given up may still run
    reported = ""
    last = False
    while not last:
        with trio.move_on_after(config.run.copy_s):
            await over.wait()
        last = over.is_set()
        why = f"it took more than {limit_s:g} s"
        with trio.move_on_after(limit_s):
            try:
                await trio.to_thread.run_sync(bring_up, limiter=limiter, abandon_on_cancel=True)
                why = ""
            except (CheckpointError, JournalError, StoreError, OSError) as error:
                why = str(error)
        if why and why != reported:
            logger.warning("no copy of the run: %s", why)
            note(f"The run was not copied to {copy}: {why}.")
        reported = why


def copy_run(run: Path, copy: Path) -> None:
    """Update the copy to the present run. Raises CheckpointError, JournalError and
    OSError."""
    if not (run / JOURNAL).exists():
        return
    copy.mkdir(parents=True, exist_ok=True, mode=0o700)
    journal = copy / f"{JOURNAL}{_PARTIAL}"
    copy_journal(run / JOURNAL, journal)
    history = SqliteHistory(journal)
    known = {version for _, version in history.snapshots()}
    for checkpoint in complete(run):
        _copy_checkpoint(checkpoint.path, checkpoint_path(copy, checkpoint.version))
    copied = {checkpoint.version for checkpoint in complete(copy)}
    if history.forgotten and not known & copied:
        raise CheckpointError("its checkpoints were replaced faster than they can be copied")
    for name in (RUN_TOML, ORIGINS, PACKED, METRICS):
        if (run / name).is_file():
            _copy_file(run / name, copy / name)
    for name in code_files(run):
        (copy / CODE).mkdir(exist_ok=True, mode=0o700)
        _copy_file(run / CODE / name, copy / CODE / name)
    for image in sorted((run / IMAGES).glob("*")) if (run / IMAGES).is_dir() else ():
        (copy / IMAGES).mkdir(exist_ok=True, mode=0o700)
        if not (copy / IMAGES / image.name).exists():  # a name is a hash of its bytes
            _copy_file(image, copy / IMAGES / image.name)
    _synced(journal)
    journal.replace(copy / JOURNAL)
    _synced(copy)
    kept = {checkpoint.version for checkpoint in complete(run)} | known
    for checkpoint in complete(copy):
        if checkpoint.version not in kept:
            shutil.rmtree(checkpoint.path)


def _copy_checkpoint(source: Path, target: Path) -> None:
    """Copy one checkpoint, unless it exists. One that is removed meanwhile is left out."""
    if target.exists() and _same(source, target):
        return
    partial = target.with_name(f"{_PARTIAL}-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(source, partial)
    except (FileNotFoundError, shutil.Error):
        if source.exists():
            raise
        shutil.rmtree(partial, ignore_errors=True)
        return
    for file in partial.iterdir():
        _synced(file)
    if target.exists():  # from a life whose last steps were taken again
        shutil.rmtree(target)
    partial.rename(target)
    _synced(target.parent)


def _same(source: Path, target: Path) -> bool:
    """True if both list the same digests of all their files."""
    try:
        return (source / SCALARS).read_bytes() == (target / SCALARS).read_bytes()
    except FileNotFoundError:
        return False


def _copy_file(source: Path, target: Path) -> None:
    partial = target.with_name(f"{target.name}{_PARTIAL}")
    shutil.copyfile(source, partial)
    _synced(partial)
    partial.replace(target)


def _synced(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
