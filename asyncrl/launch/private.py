"""The run directory as its user's own. Invariant: nobody else may write to what a run trusts, and
what a run writes nobody else may read.

A directory of an earlier run that others may read is gone on with: that was its user's choice, and
it lets nobody change anything. What is above the directory is the user's to keep.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.config import ConfigError

OTHERS_WRITE = 0o022
PRIVATE = 0o077
"""Bits of a mode that a run's files do not have."""


def refuse_foreign(run: Path) -> None:
    """Check that the directory `run` (absolute), where it is there, belongs to this user alone and
    is no link, and that no other user's link leads to it. Raises ConfigError."""
    mine = os.geteuid()
    for path in (run, *run.parents):
        try:
            found = path.lstat()
        except OSError:
            continue
        if not stat.S_ISLNK(found.st_mode):
            continue
        if path == run:
            raise ConfigError(
                f"{run}: the run directory is a symbolic link to {path.readlink()}, which may "
                "lead elsewhere tomorrow; give the directory itself."
            )
        if found.st_uid not in (0, mine):
            raise ConfigError(
                f"{run}: {path} is a symbolic link of user {found.st_uid}, who may lead it "
                "elsewhere; choose another run.dir."
            )
    if not run.is_dir():
        return
    found = run.stat()
    if found.st_uid != mine:
        raise ConfigError(
            f"{run}: the run directory belongs to user {found.st_uid}, and this is user {mine}; "
            "choose another run.dir."
        )
    if (mode := stat.S_IMODE(found.st_mode)) & OTHERS_WRITE:
        raise ConfigError(
            f"{run}: others may write to the run directory (mode {mode:o}); look at what is in "
            "it, and make it `chmod go-w`, or choose another run.dir."
        )


@contextmanager
def private_files() -> Iterator[None]:
    """Have what this process and its children make inside the block readable by its user alone."""
    before = os.umask(PRIVATE)
    try:
        yield
    finally:
        os.umask(before)
