"""Events in, events out: SQLite in WAL mode. Invariant: what is on disk is always the first `durable` events, each once and in order.

One writer, one thread at a time. Commits are grouped: what `commit_ms` milliseconds or the first MiB brought goes together, so a commit's
price is paid a few times a second, whatever the event rate. Events appended without an await between them are always in one commit: a
crash cannot part them.

With `synchronous=NORMAL` a commit survives the death of any process at any moment; the loss of the machine's power may undo the commits
since SQLite's last checkpoint, and never leaves a journal that is torn (https://www.sqlite.org/pragma.html#pragma_synchronous).

A row holds many events, encoded as one msgpack array and numbered by its first: a row for each event would cost several times as much.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import trio

from asyncrl.experience import state
from asyncrl.experience.events import AnyEvent
from asyncrl.experience.state import Experience
from asyncrl.waits import Pulse

FORMAT = 1
ROW_BYTES = 2**20
"""A row is full once it has this many bytes: it is committed without waiting for more, and a reader holds one at a time."""

_encode_into = msgspec.msgpack.Encoder().encode_into
_decode = msgspec.msgpack.Decoder(list[AnyEvent]).decode


class JournalError(Exception):
    """The journal cannot be read or written; the message is a sentence that says what to do."""


class _Row:
    """Encoded events, one after another: what a msgpack array is, once its head says how many."""

    __slots__ = ("count", "data")

    def __init__(self) -> None:
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

    def array(self) -> bytearray:
        self.data[:5] = b"\xdd" + self.count.to_bytes(4, "big")
        return self.data


class JournalStatistics(NamedTuple):
    """Events and bytes so far: `appended` and `durable` number the last event of each kind; `pending_bytes` are not yet durable. `bytes`,
    `commits`, `seconds` (all commits together) and `slowest_s` (one commit) count from the opening."""

    appended: int
    durable: int
    pending_bytes: int
    bytes: int
    commits: int
    seconds: float
    slowest_s: float


class Journal:
    """The writer. Made by `open`; every method is called from the trio thread."""

    def __init__(self, connection: sqlite3.Connection, path: Path, last: int, commit_ms: int, limit_bytes: int) -> None:
        self.path = path
        self._connection = connection
        self._commit_s = commit_ms / 1000
        self._limit_bytes = limit_bytes
        self._thread = trio.CapacityLimiter(1)
        self._appended = self._durable = last
        self._rows: list[_Row] = []
        self._in_flight_bytes = 0
        self._work = Pulse()
        self._hurry = Pulse()
        self._committed = trio.lowlevel.ParkingLot()
        self._failure: JournalError | None = None
        self._bytes = self._commits = 0
        self._seconds = self._slowest_s = 0.0

    @classmethod
    @asynccontextmanager
    async def open(cls, path: str | Path, *, commit_ms: int = 100, run: str = "", limit_bytes: int = 32 * 2**20) -> AsyncIterator[Journal]:
        """Open or create the journal of `run`, and write to it inside the block; leaving it, also by an error, commits what was appended.

        At most about `limit_bytes` wait for the disk (see `room`). Raises JournalError for a file that is no journal, of another format,
        of another run, or that cannot be written; where that happens inside the block, out of the writer's task as well.
        """
        path = Path(path)
        connection, last = await trio.to_thread.run_sync(_open, path, run)
        journal = cls(connection, path, last, commit_ms, limit_bytes)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(journal._write)
                yield journal
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                try:
                    if journal._failure is None:
                        await journal._commit()
                finally:
                    await trio.to_thread.run_sync(connection.close, limiter=journal._thread)

    @property
    def appended(self) -> int:
        """The number of the last event appended, counted from 1; 0 for none."""
        return self._appended

    @property
    def durable(self) -> int:
        """The number of the last event on disk; 0 for none."""
        return self._durable

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet on disk."""
        return self._in_flight_bytes + sum(len(row.data) for row in self._rows)

    def append(self, event: AnyEvent) -> int:
        """Put the event after all others and return its number. Never blocks. Raises JournalError once writing has failed."""
        self._raise_failure()
        if not self._rows:
            self._rows.append(_Row())
            self._work.set()
        elif len(self._rows[-1].data) >= ROW_BYTES:
            self._rows.append(_Row())
            self._hurry.set()
        self._rows[-1].append(event)
        self._appended += 1
        return self._appended

    async def room(self) -> None:
        """Return once less than `limit_bytes` wait for the disk: the writer's back-pressure, to be awaited before taking in more."""
        await trio.lowlevel.checkpoint()
        await self._wait_for(lambda: self.pending_bytes < self._limit_bytes)

    async def flush(self) -> None:
        """Return once everything appended so far is on disk. Raises JournalError where that failed."""
        await trio.lowlevel.checkpoint()
        target = self._appended
        await self._wait_for(lambda: self._durable >= target)

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            self._appended, self._durable, self.pending_bytes, self._bytes, self._commits, self._seconds, self._slowest_s
        )

    async def _wait_for(self, done: Callable[[], bool]) -> None:
        while not done():
            self._raise_failure()
            self._hurry.set()
            await self._committed.park()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise JournalError(str(self._failure)) from self._failure

    async def _write(self) -> None:
        while True:
            await self._work.wait()
            if self._commit_s:
                with trio.move_on_after(self._commit_s):
                    await self._hurry.wait()
            await self._commit()

    async def _commit(self) -> None:
        """Write what was appended. Shielded: what has left the buffer has to reach the disk."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        size = self._in_flight_bytes = sum(len(row.data) for row in rows)
        began = time.perf_counter()
        try:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_insert, self._connection, self.path, self._durable + 1, rows, limiter=self._thread)
        except BaseException as error:  # whatever it is, these events are not on disk, so no later ones may be
            self._failure = error if isinstance(error, JournalError) else JournalError(f"the journal {self.path} failed: {error!r}")
            raise
        finally:
            self._committed.unpark_all()
        seconds = time.perf_counter() - began
        self._in_flight_bytes = 0
        self._durable += sum(row.count for row in rows)
        self._bytes += size
        self._commits += 1
        self._seconds += seconds
        self._slowest_s = max(self._slowest_s, seconds)


# ---------------------------------------------------------------------------------------------------------------- the file


def read(path: str | Path, after: int = 0) -> Iterator[tuple[int, AnyEvent]]:
    """The events on disk with a number larger than `after`, and their numbers; also while a run writes. Raises JournalError."""
    path = Path(path)
    if not path.is_file():
        raise JournalError(f"there is no journal at {path}")
    with _errors(path), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as connection:
        _check(connection, path, None)
        (begin,) = connection.execute("SELECT max(first) FROM events WHERE first <= ?", (after + 1,)).fetchone()
        for first, data in connection.execute("SELECT first, data FROM events WHERE first >= ? ORDER BY first", (begin or 0,)):
            for number, event in enumerate(_decode(data), first):
                if number > after:
                    yield number, event


def fold(path: str | Path) -> Experience:
    """The state after the events on disk. Raises JournalError, and Refused where they do not follow from one another."""
    return state.fold(event for _, event in read(path))


def truncate(path: str | Path, after: int) -> None:
    """Forget the events with a number larger than `after`. Nobody may have the journal open. Raises JournalError."""
    path = Path(path)
    connection, _ = _open(path, None)
    with closing(connection), _transaction(connection, path):
        for first, data in connection.execute("SELECT first, data FROM events WHERE first <= ? ORDER BY first DESC LIMIT 1", (after,)):
            kept = _decode(data)[: after + 1 - first]
            connection.execute("UPDATE events SET data = ? WHERE first = ?", (msgspec.msgpack.encode(kept), first))
        connection.execute("DELETE FROM events WHERE first > ?", (after,))


def _open(path: Path, run: str | None) -> tuple[sqlite3.Connection, int]:
    """A connection for writing, and the number of the last event. With `run`, the journal is made where there is none."""
    if run is None and not path.is_file():
        raise JournalError(f"there is no journal at {path}")
    with _errors(path):
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        with _errors(path):
            if run is not None and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                connection.execute("PRAGMA journal_mode = WAL")
                with _transaction(connection, path):
                    connection.execute("CREATE TABLE header (format INTEGER NOT NULL, run TEXT NOT NULL)")
                    connection.execute("CREATE TABLE events (first INTEGER PRIMARY KEY, data BLOB NOT NULL)")
                    connection.execute("INSERT INTO header VALUES (?, ?)", (FORMAT, run))
            _check(connection, path, run)
            connection.execute("PRAGMA synchronous = NORMAL")
            last = 0
            for first, data in connection.execute("SELECT first, data FROM events ORDER BY first DESC LIMIT 1"):
                last = first + len(_decode(data)) - 1
            return connection, last
    except BaseException:
        connection.close()
        raise


def _check(connection: sqlite3.Connection, path: Path, run: str | None) -> None:
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if names != {"header", "events"}:
        raise JournalError(f"{path} is a database, but no journal of asyncrl: give another run.dir")
    [(version, owner)] = connection.execute("SELECT format, run FROM header")
    if version != FORMAT:
        raise JournalError(
            f"the journal {path} has format {version}, and this asyncrl reads {FORMAT}: use the asyncrl that wrote it, or another run.dir"
        )
    if run is not None and owner != run:
        raise JournalError(f"the journal {path} belongs to run {owner!r}, not to {run!r}: give another run.dir")


def _insert(connection: sqlite3.Connection, path: Path, first: int, rows: list[_Row]) -> None:
    """Commit rows whose events are numbered from `first`. Runs in the writer's thread."""
    with _transaction(connection, path):
        for row in rows:
            connection.execute("INSERT INTO events VALUES (?, ?)", (first, row.array()))
            first += row.count


@contextmanager
def _transaction(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    with _errors(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """SQLite's and the decoder's errors as sentences."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise JournalError(f"the journal {path} got events from somebody else: two runs write to it; give each its own run.dir") from error
    except sqlite3.OperationalError as error:
        raise JournalError(f"the journal {path} could not be used ({error}): see that its disk has room and is writable") from error
    except sqlite3.Error as error:
        raise JournalError(f"{path} is damaged, or no journal at all ({error}): give another run.dir") from error
    except msgspec.MsgspecError as error:
        raise JournalError(f"the journal {path} holds what is no event of this asyncrl ({error}): give another run.dir") from error
