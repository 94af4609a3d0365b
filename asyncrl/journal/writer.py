"""The writer of a journal. Invariant: what is on disk is always the first `durable` events, each
once and in order.

One writer, one commit at a time. Commits are grouped: the events of `commit_ms` milliseconds, or
the first MiB, go together, so there are only a few commits a second, whatever the event rate.
Events appended without an await between them are always in one commit, so a crash cannot separate
them.

The writer waits for a disk that is full, or that another process has locked. Nothing is lost
meanwhile: producers of events wait for `room`, and `trouble` says why.
"""

from __future__ import annotations

import errno
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec
import trio

from asyncrl.experience.events import AnyEvent
from asyncrl.experience.experience import Experience
from asyncrl.journal.disk import (
    Abandon,
    Compact,
    Disk,
    DiskFull,
    DiskNotReady,
    EventRows,
    JournalError,
    JournalNotReady,
    Keep,
    Unwritable,
    Write,
)
from asyncrl.journal.sqlite import SqliteDisk
from asyncrl.os_errors import remedy
from asyncrl.runtime.ipc.waits import Pulse

ROW_BYTES = 2**20
"""A row is full once it has this many bytes: it is committed without waiting for more, and a reader
holds one at a time."""
LIMIT_BYTES = 32 * 2**20
FULL_S = 300.0
RETRY_S = 1.0
"""Seconds between retries of a failed commit."""
BeforeCommit = Callable[[bool], Awaitable[None]]
"""`before_commit(forced)` writes data that belongs beside the journal. It is `forced` to disk
before a state from whose checkpoint a run may resume."""

_encoder = msgspec.msgpack.Encoder()
_encode_into = _encoder.encode_into


class _Row:
    """Encoded events, one after another: a msgpack array, once its head says how many."""

    __slots__ = ("count", "data", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        self.count = 0
        self.data = bytearray(5)

    def append(self, event: AnyEvent) -> None:
        size = len(self.data)
        try:
            _encode_into(event, self.data, -1)
        except BaseException:
            del self.data[size:]  # half an event would take the others with it
            raise
        self.count += 1

    def events(self) -> EventRows:
        self.data[:5] = b"\xdd" + self.count.to_bytes(4, "big")
        return EventRows(self.first, self.count, self.data)


class JournalStatistics(NamedTuple):
    """Events and bytes so far: `appended` and `durable` number the last event of each kind;
    `pending_bytes` are not yet durable. `bytes`, `commits`, `seconds` (all commits together) and
    `slowest_s` (one commit) count from the opening. `disk_bytes` is what it takes now."""

    appended: int
    durable: int
    pending_bytes: int
    bytes: int
    commits: int
    seconds: float
    slowest_s: float
    disk_bytes: int


class Journal:
    """The writer. `open` creates it, or `over` for a disk; every method is called from the trio
    thread."""

    def __init__(
        self,
        disk: Disk,
        commit_ms: int,
        limit_bytes: int,
        full_s: float,
        before_commit: BeforeCommit | None,
    ) -> None:
        self._disk = disk
        self._before_commit = before_commit
        self._commit_s = commit_ms / 1000
        self._limit_bytes = limit_bytes
        self._full_s = full_s
        self._appended = self._durable = disk.last
        self._asked = self._written = 0  # rows, and other writes
        self._writes: list[_Row | Write] = []
        self._in_flight: list[_Row | Write] = []
        self._work = Pulse()
        self._hurry = Pulse()
        self._committed = trio.lowlevel.ParkingLot()
        self._failure: JournalError | None = None
        self._obstacle: DiskNotReady | None = None
        self._bytes = self._commits = 0
        self._seconds = self._slowest_s = 0.0

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: str | Path,
        *,
        commit_ms: int = 100,
        run: str = "",
        limit_bytes: int = LIMIT_BYTES,
        full_s: float = FULL_S,
        before_commit: BeforeCommit | None = None,
    ) -> AsyncIterator[Journal]:
        """Open or create the journal of `run`, and write to it inside the block, as `over` does.
        Raises JournalError for a file that is no journal, of another format, of another run, or
        that cannot be written."""
        disk = await SqliteDisk.open(Path(path), run)
        async with cls.over(
            disk,
            commit_ms=commit_ms,
            limit_bytes=limit_bytes,
            full_s=full_s,
            before_commit=before_commit,
        ) as journal:
            yield journal

    @classmethod
    @asynccontextmanager
    async def over(
        cls,
        disk: Disk,
        *,
        commit_ms: int = 100,
        limit_bytes: int = LIMIT_BYTES,
        full_s: float = FULL_S,
        before_commit: BeforeCommit | None = None,
    ) -> AsyncIterator[Journal]:
        """Write to `disk`, which it owns, inside the block; leaving it, also by an error, commits
        all appended events.

        At most about `limit_bytes` wait for the disk (see `room`). Commits to a full or locked disk
        are retried for `full_s` seconds, also after an OSError of `before_commit`. Raises
        JournalError where it cannot be written, out of the writer's task as well; JournalNotReady
        if the retries fail, too.
        """
        journal = cls(disk, commit_ms, limit_bytes, full_s, before_commit)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(journal._write)
                yield journal
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                try:
                    if journal._failure is None and (obstacle := await journal._commit()):
                        journal._give_up(
                            f"{obstacle}, so the last events of the run are lost: "
                            f"{obstacle.remedy}, and resume it"
                        )
                finally:
                    await disk.aclose()

    @property
    def appended(self) -> int:
        """The number of the last event appended, counted from 1; 0 for none."""
        return self._appended

    @property
    def durable(self) -> int:
        """The number of the last event on disk; 0 for none."""
        return self._durable

    @property
    def trouble(self) -> str:
        """The reason why commits are blocked at the moment, without loss, and what to do; empty
        where they are not."""
        return f"{self._obstacle}: {self._obstacle.remedy}" if self._obstacle else ""

    @property
    def given_up(self) -> str:
        """The sentence with which the writer gave up a disk that was not ready; empty where it has
        not."""
        return str(self._failure) if isinstance(self._failure, JournalNotReady) else ""

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet on disk."""
        return sum(_size(write) for writes in (self._in_flight, self._writes) for write in writes)

    def append(self, event: AnyEvent) -> int:
        """Append the event and return its number. Never blocks. Raises JournalError once writing
        has failed."""
        self._raise_failure()
        row = self._writes[-1] if self._writes else None
        if not isinstance(row, _Row) or len(row.data) >= ROW_BYTES:
            if row is not None:
                self._hurry.set()
            row = _Row(self._appended + 1)
            self._put(row)
        row.append(event)
        self._appended += 1
        return self._appended

    def keep(self, version: int, experience: Experience) -> int:
        """Store the current state for the checkpoint of `version`; returns the number of the last
        event, which is its name."""
        self._raise_failure()
        self._put(Keep(self._appended, version, _encoder.encode(experience.snapshot())))
        return self._appended

    def compact(self, version: int) -> None:
        """Drop all before the newest state kept for `version`, where there is one, as it is not
        needed any more."""
        self._put(Compact(version))

    def abandon(self, version: int) -> None:
        """Drop the states kept for versions above `version`, whose checkpoints are gone."""
        self._put(Abandon(version))

    async def room(self) -> None:
        """Return once less than `limit_bytes` wait for the disk: the writer's back-pressure, to be
        awaited before taking in more. The wait ends by JournalError when retries on a full disk
        take too long. Where there is room it does not yield to other tasks, because it is called
        for every message."""
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._wait_for(lambda: self.pending_bytes < self._limit_bytes)

    async def flush(self) -> None:
        """Return once everything so far is on disk: events, states, and deletions. Raises
        JournalError where that failed."""
        await trio.lowlevel.checkpoint()
        target = self._asked
        await self._wait_for(lambda: self._written >= target)

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            self._appended,
            self._durable,
            self.pending_bytes,
            self._bytes,
            self._commits,
            self._seconds,
            self._slowest_s,
            self._disk.size,
        )

    def _put(self, write: _Row | Write) -> None:
        self._writes.append(write)
        self._asked += 1
        self._work.set()

    async def _wait_for(self, done: Callable[[], bool]) -> None:
        while not done():
            self._raise_failure()
            self._hurry.set()
            await self._committed.park()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure)) from self._failure

    def _fail(self, failure: JournalError) -> None:
        self._failure = failure
        self._committed.unpark_all()

    def _give_up(self, why: str) -> NoReturn:
        self._fail(JournalNotReady(why))
        raise JournalNotReady(why)

    async def _write(self) -> None:
        while True:
            await self._work.wait()
            if self._commit_s:
                with trio.move_on_after(self._commit_s):
                    await self._hurry.wait()
            began = trio.current_time()
            while obstacle := await self._commit():
                if trio.current_time() - began >= self._full_s:
                    self._give_up(
                        f"{obstacle}, for {self._full_s:g} s: {obstacle.remedy}, and resume the run"
                    )
                await trio.sleep(RETRY_S)  # there is no notice when a disk has room again

    async def _commit(self) -> DiskNotReady | None:
        """Write the appended events, or return the obstacle. Shielded: events that left the buffer
        must reach the disk."""
        writes = self._in_flight = self._in_flight + self._writes
        self._writes = []
        if not writes:
            return None
        began = time.perf_counter()
        try:
            with trio.CancelScope(shield=True):
                if self._before_commit is not None:
                    await self._write_beside(any(isinstance(write, Keep) for write in writes))
                await self._disk.commit(
                    [write.events() if isinstance(write, _Row) else write for write in writes]
                )
        except DiskNotReady as obstacle:
            self._obstacle = obstacle
            return obstacle
        # whatever the error, these events are not on disk, so no later ones may be
        except BaseException as error:
            self._fail(
                error
                if isinstance(error, JournalError)
                else JournalError(f"the journal failed: {error!r}")
            )
            raise
        seconds = time.perf_counter() - began
        self._in_flight = []
        self._obstacle = None
        self._written += len(writes)
        self._durable += sum(write.count for write in writes if isinstance(write, _Row))
        self._bytes += sum(_size(write) for write in writes)
        self._commits += 1
        self._seconds += seconds
        self._slowest_s = max(self._slowest_s, seconds)
        self._committed.unpark_all()
        return None

    async def _write_beside(self, forced: bool) -> None:
        assert self._before_commit is not None
        try:
            await self._before_commit(forced)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # not EROFS: room does not help
            raise (DiskFull if full else Unwritable)(
                f"what is written beside the journal could not be written ({error.strerror})",
                remedy(error),
            ) from error


def _size(write: _Row | Write) -> int:
    return len(write.data) if isinstance(write, _Row | Keep) else 0
