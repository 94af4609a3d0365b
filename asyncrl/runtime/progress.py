"""Progress of what takes long: as text, and through a pipe from a process that prepares
something.

The pipe is a FIFO in the run's directory. Its writer never waits: what nobody reads in time is left
out, and the next one says it again.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from asyncrl.messages import Progress
from asyncrl.words import clock

EVERY_S = 0.5
"""Least seconds between two that are sent."""
LINE_BYTES = 4096
"""Bytes that a pipe takes whole or not at all."""


def left_s(first: float, done: float, of: float, seconds: float) -> float | None:
    """Seconds left where `seconds` have brought it from `first` to `done`, of `of`; None where
    nobody knows.

    >>> left_s(10, 20, 40, 5.0)
    10.0
    """
    if done <= first or of <= 0:
        return None
    return seconds * max(0.0, of - done) / (done - first)


def amount(progress: Progress) -> str:
    """So much of so much, where that is counted.

    >>> amount(Progress("evaluating", 3, 8, 1.0))
    '3/8'
    """
    return f"{progress.done:g}/{progress.of:g}" if progress.counted else ""


def progress_line(progress: Progress) -> str:
    """One line of text.

    >>> progress_line(Progress("evaluating version 4", 3, 8, 75.0, 5.0))
    'evaluating version 4  3/8  1:15 elapsed, 0:05 left'
    """
    left = "" if progress.left_s is None else f", {clock(progress.left_s)} left"
    parts = (progress.what, amount(progress), f"{clock(progress.seconds)} elapsed{left}")
    line = "  ".join(part for part in parts if part)
    return f"{line}  | {progress.note}" if progress.note else line


class ProgressPipe:
    """Sends to who reads the FIFO at a path, if anybody does."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        self._sent = float("-inf")
        with contextlib.suppress(OSError):  # nobody reads, or there is no pipe
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                self._descriptor = descriptor
            else:
                os.close(descriptor)

    @property
    def due(self) -> bool:
        """True if nothing was said for `EVERY_S`, and somebody may hear it."""
        return self._descriptor is not None and time.monotonic() - self._sent >= EVERY_S

    def send(self, progress: Progress) -> None:
        """Say how far it is."""
        line = msgspec.json.encode(progress) + b"\n"
        if self._descriptor is not None and len(line) <= LINE_BYTES:
            self._sent = time.monotonic()
            with contextlib.suppress(OSError):  # the pipe is full, or nobody reads any more
                os.write(self._descriptor, line)


async def receive(
    path: Path,
    heard: Callable[[Progress], None],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Make a FIFO at `path`, and tell `heard` what comes through it, until cancelled. Raises
    OSError."""
    async with trio.lowlevel.FdStream(_made(path)) as stream:
        task_status.started()
        rest = b""
        while True:
            *lines, rest = (rest + await stream.receive_some(LINE_BYTES)).split(b"\n")
            for line in lines:
                with contextlib.suppress(msgspec.DecodeError):
                    heard(msgspec.json.decode(line, type=Progress))
            rest = rest[-LINE_BYTES:]


def _made(path: Path) -> int:
    """A new FIFO, open for writing as well, so that it has no end when its writer goes."""
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
