"""A machine's own directory of a run that it joins, with the run's key in it.

Invariant: it outlives its agent only until the next agent of this user begins on this machine: it
is claimed as long as its agent lives, and whose claim has ended is removed. One that is being made
is named otherwise until it is claimed.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from asyncrl.config.errors import ConfigError
from asyncrl.launch.claim import claimed
from asyncrl.runtime.run_dir import LOCK

NAMED, MAKING = "asyncrl-agent-", "asyncrl-making-"
"""Starts of the names of a directory, and of one that is not claimed yet."""
TAKEN = "another asyncrl is running in this directory"


@contextmanager
def machine_folder() -> Iterator[Path]:
    """Make a directory of this process alone, which is removed at the block's end, and remove those
    of agents that were killed. Raises OSError."""
    remove_left()
    made = Path(tempfile.mkdtemp(prefix=MAKING))
    folder = made.with_name(made.name.replace(MAKING, NAMED))
    try:
        with claimed(made, TAKEN):
            made.rename(folder)
            yield folder
    finally:
        for one in (made, folder):
            shutil.rmtree(one, ignore_errors=True)


def remove_left() -> None:
    """Remove the directories of agents of this user that were killed. What is not such a directory,
    or cannot be removed, is left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{NAMED}*"):
        with suppress(OSError, ConfigError):
            state = folder.lstat()
            mine = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
            if mine and not state.st_mode & 0o077 and (folder / LOCK).is_file():
                with claimed(folder, TAKEN):
                    shutil.rmtree(folder, ignore_errors=True)
