"""The run directory as its user's own. Invariant: other users can neither write to what a run
trusts nor read what it writes.

A directory of an earlier run that others may read is accepted: that was its user's choice, and does
not let others change anything. The user is responsible for the directories above it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.config import ConfigError
from asyncrl.config.paths import is_folder
from asyncrl.files import not_its_own
from asyncrl.runtime.logs import FOLDER as LOGS
from asyncrl.runtime.run_dir import JOURNAL, LOCK, METRICS

GROWING = (METRICS, LOCK, JOURNAL, *(f"{JOURNAL}-{end}" for end in ("wal", "shm", "journal")))
"""Files of a run that are written where they are; the others are replaced whole."""
OTHERS_WRITE = 0o022
PRIVATE = 0o077
"""Bits of a mode that a run's files do not have."""


def refuse_foreign(run: Path) -> None:
    """Check that the directory `run` (absolute), if it exists, belongs to this user alone and is
    not a link, and that no other user's link leads to it. Raises ConfigError."""
    mine = os.geteuid()
    for path in (run, *run.parents):
        try:
            status = path.lstat()
        except OSError:
            continue
        if not stat.S_ISLNK(status.st_mode):
            continue
        if path == run:
            raise ConfigError(
                f"{run}: the run directory is a symbolic link to {path.readlink()}, whose "
                "target may change; give the directory itself."
            )
        if status.st_uid not in (0, mine):
            raise ConfigError(
                f"{run}: {path} is a symbolic link of user {status.st_uid}, who may change its "
                "target; choose another run.dir."
            )
    if not is_folder(run):
        return
    status = run.stat()
    if status.st_uid != mine:
        raise ConfigError(
            f"{run}: the run directory belongs to user {status.st_uid}, and this is user {mine}; "
            "choose another run.dir."
        )
    if (mode := stat.S_IMODE(status.st_mode)) & OTHERS_WRITE:
        raise ConfigError(
            f"{run}: others may write to the run directory (mode {mode:o}); check its contents "
            "and make it `chmod go-w`, or choose another run.dir."
        )


def refuse_shared(run: Path) -> None:
    """Check that what a run would write into, in a directory that is there already, is its own: no
    link, and no second name of a file, leads elsewhere. Raises ConfigError."""
    logs = run / LOGS
    written = [run / name for name in GROWING]
    try:
        if stat.S_ISDIR(logs.lstat().st_mode):
            written += sorted(logs.iterdir())
        else:
            raise ConfigError(
                f"{logs}: this is not a directory, and the run's logs belong in it; remove it."
            )
    except OSError:  # it is not there yet
        pass
    for path in written:
        if what := not_its_own(path):
            raise ConfigError(
                f"{path}: this is {what}, and the run would write into it; put a copy of the file "
                "in its place, or remove it."
            )


@contextmanager
def private_files() -> Iterator[None]:
    """Make files of this process and its children inside the block readable by their user alone."""
    before = os.umask(PRIVATE)
    try:
        yield
    finally:
        os.umask(before)
