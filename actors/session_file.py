"""Agents' sessions on disk. Invariant: the file is whole lines, whatever the disk says. A session
that cannot be written waits, and no new one is opened meanwhile."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

import msgspec
import trio

from actors.reporting import Reporter
from asyncrl.gateway.gateway import Gateway
from asyncrl.ipc.waits import WaitExpired, Waits
from asyncrl.sessions.finished import FinishedSession

RETRY_S = 5.0
"""Seconds after which a session that could not be written is tried again."""
_BLOCK = 1 << 16

logger = logging.getLogger(__name__)


class SessionFile:
    """A file with one line for each session. It is full at `most` bytes: then sessions that are
    open are still written. It stays open, so that no descriptor is needed to write. Raises OSError
    where it cannot be opened."""

    def __init__(self, path: Path, most: int) -> None:
        self._path, self._most = path, most
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        # an actor before this one may have been killed amid a line
        self._bytes = _whole(self._file, os.fstat(self._file).st_size)
        os.ftruncate(self._file, self._bytes)

    @property
    def full(self) -> str | None:
        """A sentence that says so, where the file is full."""
        if self._bytes < self._most:
            return None
        return (
            f"the run's sessions have {self._bytes} bytes in {self._path.name}, and "
            f"gateway.session_bytes gives it {self._most}; no new session is opened"
        )

    def append(self, finished: FinishedSession) -> None:
        """Add a session. Raises OSError, and then the file is as it was."""
        line = memoryview(msgspec.json.encode(finished) + b"\n")
        end = self._bytes + len(line)
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError:
            os.ftruncate(self._file, self._bytes)
            raise
        self._bytes = end

    def close(self) -> None:
        os.close(self._file)


async def write_sessions(
    gateway: Gateway, file: SessionFile, reporter: Reporter, waits: Waits, close: trio.Event
) -> None:
    """Write the sessions in the order in which they end. Cancelled, it ends when none is left. Once
    `close` is set, each is tried once more, and lost if the disk still does not take it."""
    turn = trio.CapacityLimiter(1)
    gateway.written(file.full)
    while True:
        finished = await gateway.fetch()
        reporter.count(f"sessions_{finished.end}")
        while (error := await _append(file, finished, turn)) is not None:
            reporter.count("sessions_unwritten")
            gateway.written(f"sessions cannot be written ({error.strerror}); no new one is opened")
            if close.is_set():
                reporter.count("sessions_lost")
                logger.error("session %s is lost: it cannot be written", finished.session)
                break
            logger.warning("session %s cannot be written yet: %s", finished.session, error)
            with (
                suppress(WaitExpired),
                waits.on("room for sessions", owner="the disk", deadline_s=RETRY_S),
            ):
                await close.wait()
        else:
            gateway.written(file.full)


async def _append(
    file: SessionFile, finished: FinishedSession, turn: trio.CapacityLimiter
) -> OSError | None:
    """Append in a thread that nobody else waits for; the error, where there is one."""
    with trio.CancelScope(shield=True):  # the session is nowhere else any more
        try:
            await trio.to_thread.run_sync(file.append, finished, limiter=turn)
        except OSError as error:
            return error
    return None


def _whole(file: int, size: int) -> int:
    """Bytes up to the end of the last whole line."""
    while size:
        start = max(0, size - _BLOCK)
        if (at := os.pread(file, size - start, start).rfind(b"\n")) >= 0:
            return start + at + 1
        size = start
    return 0
