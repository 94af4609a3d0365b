"""A journal's file: SQLite in WAL mode. Invariant: what it cannot read it says, in a sentence, and never skips.

With `synchronous=NORMAL` a commit survives the death of any process at any moment; the loss of the machine's power may undo the commits
since SQLite's last checkpoint, and never leaves a journal that is torn (https://www.sqlite.org/pragma.html#pragma_synchronous): a
frame of the log that is not whole ends it, so what is left is a prefix.

A row holds many events, encoded as one msgpack array and numbered by its first: a row for each event would cost several times as much.
Compacted rows leave free pages, which later rows take: the file grows to what two checkpoint intervals need, and no further.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import msgspec
import trio

from asyncrl.experience.events import AnyEvent
from asyncrl.experience.state import Snapshot
from asyncrl.journal.disk import Abandon, Compact, DiskFull, Events, JournalError, Keep, Write

FORMAT = 2
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)  # some file systems say the second where they mean the first
_decode = msgspec.msgpack.Decoder(list[AnyEvent]).decode
_decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode


class SqliteDisk:
    """The writer's connection. One thread at a time uses it."""

    def __init__(self, connection: sqlite3.Connection, path: Path, last: int) -> None:
        self.last = last
        self._connection = connection
        self._path = path
        self._thread = trio.CapacityLimiter(1)

    @classmethod
    async def open(cls, path: Path, run: str) -> Self:
        """Open or create the journal of `run`. Raises JournalError for a file that is no journal, of another format, of another run, or
        that cannot be written."""
        connection, last = await trio.to_thread.run_sync(_open, path, run)
        return cls(connection, path, last)

    @property
    def size(self) -> int:
        files = (self._path, self._path.with_name(self._path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    async def commit(self, writes: Sequence[Write]) -> None:
        await trio.to_thread.run_sync(self._commit, writes, limiter=self._thread)

    async def aclose(self) -> None:
        await trio.to_thread.run_sync(self._connection.close, limiter=self._thread)

    def _commit(self, writes: Sequence[Write]) -> None:
        execute = self._connection.execute
        with _transaction(self._connection, self._path):
            for write in writes:
                match write:
                    case Events(first, _, data):
                        execute("INSERT INTO events VALUES (?, ?)", (first, data))
                    case Keep(number, version, data):
                        execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (number, version, data))
                    case Abandon(version):
                        execute("DELETE FROM snapshots WHERE version > ?", (version,))
                    case Compact(version):
                        (number,) = execute("SELECT max(number) FROM snapshots WHERE version = ?", (version,)).fetchone()
                        if number is not None:
                            execute("DELETE FROM snapshots WHERE number < ?", (number,))
                            execute("DELETE FROM events WHERE first <= ?", (number,))


class SqliteHistory:
    """A journal's file, to be read. Its methods raise JournalError."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def events(self, after: int) -> Iterator[tuple[int, AnyEvent]]:
        with self._reading() as connection:
            (begin,) = connection.execute("SELECT max(first) FROM events WHERE first <= ?", (after + 1,)).fetchone()
            due = None
            for first, data in connection.execute("SELECT first, data FROM events WHERE first >= ? ORDER BY first", (begin or 0,)):
                if first != (due or min(first, after + 1)):
                    raise JournalError(
                        f"the journal {self._path} has no events from {due or after + 1} to {first - 1}: go back to a copy of it"
                    )
                events = _decode(data)
                for number, event in enumerate(events, first):
                    if number > after:
                        yield number, event
                due = first + len(events)

    @property
    def forgotten(self) -> int:
        """The number of the last event that was compacted away; 0 for none."""
        with self._reading() as connection:
            ((first,),) = connection.execute("SELECT min(first) FROM events")
            return (first or 1) - 1

    def snapshots(self) -> list[tuple[int, int]]:
        with self._reading() as connection:
            return connection.execute("SELECT number, version FROM snapshots ORDER BY number").fetchall()

    def snapshot(self, number: int) -> Snapshot:
        with self._reading() as connection:
            for (data,) in connection.execute("SELECT data FROM snapshots WHERE number = ?", (number,)):
                return _decode_snapshot(data)
        raise JournalError(f"the journal {self._path} has no snapshot of the state after event {number}")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if not self._path.is_file():
            raise JournalError(f"there is no journal at {self._path}")
        with (
            errors(self._path),
            closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as connection,
        ):
            _check(connection, self._path, None)
            yield connection


def _open(path: Path, run: str) -> tuple[sqlite3.Connection, int]:
    """A connection for writing, and the number of the last event."""
    with errors(path):
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        with errors(path):
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                connection.execute("PRAGMA journal_mode = WAL")
                with _transaction(connection, path):
                    connection.execute("CREATE TABLE header (format INTEGER NOT NULL, run TEXT NOT NULL)")
                    connection.execute("CREATE TABLE events (first INTEGER PRIMARY KEY, data BLOB NOT NULL)")
                    connection.execute("CREATE TABLE snapshots (number INTEGER PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL)")
                    connection.execute("INSERT INTO header VALUES (?, ?)", (FORMAT, run))
            _check(connection, path, run)
            connection.execute("PRAGMA synchronous = NORMAL")
            (last,) = connection.execute("SELECT max(number) FROM snapshots").fetchone()
            for first, data in connection.execute("SELECT first, data FROM events ORDER BY first DESC LIMIT 1"):
                last = first + len(_decode(data)) - 1
            return connection, last or 0
    except BaseException:
        connection.close()
        raise


def _check(connection: sqlite3.Connection, path: Path, run: str | None) -> None:
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"header", "events"} <= names <= {"header", "events", "snapshots"}:
        raise JournalError(f"{path} is a database, but no journal of asyncrl: give another run.dir")
    [(version, owner)] = connection.execute("SELECT format, run FROM header")
    if version != FORMAT:
        raise JournalError(
            f"the journal {path} has format {version}, and this asyncrl reads {FORMAT}: use the asyncrl that wrote it, or another run.dir"
        )
    if run is not None and owner != run:
        raise JournalError(f"the journal {path} belongs to run {owner!r}, not to {run!r}: give another run.dir")


@contextmanager
def _transaction(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    with errors(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextmanager
def errors(path: Path) -> Iterator[None]:
    """SQLite's and the decoder's errors as sentences; DiskFull where there is no room."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise JournalError(f"the journal {path} got events from somebody else: two runs write to it; give each its own run.dir") from error
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode in _NO_ROOM:
            raise DiskFull(f"the journal {path} could not be written ({error})") from error
        raise JournalError(f"the journal {path} could not be used ({error}): see that its disk has room and is writable") from error
    except sqlite3.Error as error:
        raise JournalError(f"{path} is damaged, or no journal at all ({error}): give another run.dir") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise JournalError(f"the journal {path} holds what is no event of this asyncrl ({error}): give another run.dir") from error
