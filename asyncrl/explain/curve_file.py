"""The writer of `metrics.jsonl`. Invariant: what is on disk is whole lines, in order, but for the
last one after a kill.

There is one writer: the journal's. It writes the lines so far before each commit, and forces them
to the disk before a commit that keeps the state for a checkpoint. So a checkpoint that a run can go
on from has the lines of all steps before it, whatever was killed, and also where the power was cut.
If the disk is full, it waits as the journal does."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from asyncrl.explain.curve import Curve, read, trim

logger = logging.getLogger(__name__)


class CurveFile:
    """Appends lines to a file. `append` is called in one thread, `write` in any, one at a time."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)
        self._bytes = os.fstat(self._descriptor).st_size  # of whole lines
        self._unwritten: deque[bytes] = deque()

    def append(self, line: bytes) -> None:
        """Queue a line."""
        self._unwritten.append(line)

    def write(self, forced: bool) -> None:
        """Write every queued line; if `forced`, return when they are on the disk. Raises OSError,
        and then the lines that were not written whole are written by the next call."""
        while self._unwritten:
            line = memoryview(self._unwritten[0])
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                os.ftruncate(self._descriptor, self._bytes)
                raise
            self._bytes += len(self._unwritten.popleft())
        if forced:
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Write what is left, and end. Raises OSError."""
        try:
            self.write(forced=True)
        finally:
            os.close(self._descriptor)


@asynccontextmanager
async def open_curve(
    path: Path, version: int, published: int
) -> AsyncIterator[tuple[Curve, Callable[[bool], Awaitable[None]]]]:
    """The curve of a run that goes on from the checkpoint of `version`, 0 for none, and had
    `published` that version last; and what the journal awaits before each commit. What is left at
    the end of the block is written then. Raises OSError."""
    await trio.to_thread.run_sync(trim, path, version, published)
    file = CurveFile(path)
    try:
        curve = Curve(read(path), file.append)

        async def before_commit(forced: bool) -> None:
            await trio.to_thread.run_sync(file.write, forced)

        yield curve, before_commit
    finally:
        try:
            file.close()
        except OSError as error:
            logger.warning("the last lines of %s are not written: %s", path.name, error)
