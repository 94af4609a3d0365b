"""The claim to a directory: the lock of one file, which its holder has until it ends, however that
is."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.config.errors import ConfigError, usable
from asyncrl.files import open_growing
from asyncrl.runtime.run_dir import LOCK


@contextmanager
def claimed(folder: Path, otherwise: str) -> Iterator[None]:
    """Claim a directory for this process alone in the block. Raises ConfigError, which ends with
    `otherwise` if another process has it."""
    with usable(folder / LOCK, "written"):
        opened = open_growing(folder / LOCK)
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder}: {otherwise}.") from None
        yield
