"""A journal's file: SQLite in WAL mode. Invariant: it never skips unreadable data, but raises a
sentence with the reason.

With `synchronous=NORMAL` a commit survives the death of any process at any moment; the loss of the
machine's power may undo the commits since SQLite's last checkpoint, and never leaves a journal that
is torn (https://www.sqlite.org/pragma.html#pragma_synchronous): a frame of the log that is not
whole ends it, so what is left is a prefix. A commit with the state of a checkpoint is forced to the
disk, with all before it (`FULL`): or else a power cut might leave checkpoints that the journal does
not know, and none that it does.

A row holds many events, encoded as one msgpack array and numbered by its first: a row for each
event would cost several times as much. Compacted rows leave free pages, which later rows take: the
file grows to what two checkpoint intervals need, and no further. The log grows while a reading
transaction is open, and is truncated to `WAL_BYTES` after it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Self

import msgspec
import trio

from asyncrl.escape import escaped
from asyncrl.experience.events import AnyEvent
from asyncrl.experience.snapshot import Snapshot
from asyncrl.files import held_bytes, not_its_own
from asyncrl.journal.disk import (
    Abandon,
    Compact,
    DiskFull,
    DiskNotReady,
    EventRows,
    Gone,
    JournalError,
    JournalNotReady,
    Keep,
    Locked,
    Unwritable,
    Write,
)
from asyncrl.os_errors import opening, remedy

FORMAT = 4
"""Format number of a journal: of its tables, and of the names and fields of events and snapshots.
Increase it when one of these changes. 3: a snapshot in one row, of at most 10⁹ bytes. 2: the names
before `Requeued`, `LateTokens`, `StoredForReplay`, `prompt_index`, `split` and `holder`. 1: no
snapshots."""
PART_BYTES = 2**26
"""Bytes of a snapshot that one row has: SQLite takes no row of more than 10⁹."""
ROW_BYTES = PART_BYTES + 2**16
"""Bytes of a value, at most: SQLite refuses a larger one before it has memory for it."""
STATE_BYTES = 2**32
"""Bytes of a snapshot in all its rows, at most; nor has one more than its file, without holes."""
STATES = 10_000
"""Snapshots of a journal, at most; a run keeps two or three."""
BUSY_S = 5.0
"""Seconds that SQLite itself waits for another process's lock."""
SCHEMA = 100
"""Tables, indexes and the like that are read of a database; a journal has four."""
LAST = 2**62
"""The largest number of an event; no run has so many."""
WAL_BYTES = 8 * 2**20
"""Bytes to which the write-ahead log is truncated after it grew further."""

_OBSTACLES: dict[int, type[DiskNotReady]] = {
    sqlite3.SQLITE_FULL: DiskFull,  # ENOSPC
    # any other errno of a write: a quota, a limit on files, a disk that became read-only
    sqlite3.SQLITE_IOERR_WRITE: Unwritable,
    # the log's index could not grow, for whatever reason: ENOSPC too
    sqlite3.SQLITE_IOERR_SHMSIZE: Unwritable,
    sqlite3.SQLITE_BUSY: Locked,
}
_decode = msgspec.msgpack.Decoder(list[AnyEvent]).decode
_decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode


class SqliteDisk:
    """The writer's connection, used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, path: Path, last: int) -> None:
        self.last = last
        self._connection = connection
        self._path = path
        self._written: tuple[Path, ...] = (path,)  # the log is made by the first commit
        self._thread = trio.CapacityLimiter(1)

    @classmethod
    async def open(cls, path: Path, run: str) -> Self:
        """Open or create the journal of `run`. Raises JournalError for a file that is no journal,
        of another format, of another run, or that cannot be written."""
        connection, last = await trio.to_thread.run_sync(_open, path, run)
        return cls(connection, path, last)

    @property
    def size(self) -> int:
        return sum(file.stat().st_size for file in self._files() if file.exists())

    def _files(self) -> tuple[Path, Path]:
        return self._path, self._path.with_name(self._path.name + "-wal")

    async def commit(self, writes: Sequence[Write]) -> None:
        await trio.to_thread.run_sync(self._commit, writes, limiter=self._thread)

    async def aclose(self) -> None:
        await trio.to_thread.run_sync(self._connection.close, limiter=self._thread)

    def _commit(self, writes: Sequence[Write]) -> None:
        for file in self._written:
            if not file.exists():  # SQLite would write on, into a file that nothing can open
                raise Gone(f"{file} was removed, or its directory was")
        forced = any(isinstance(write, Keep) for write in writes)
        with errors(self._path), _obstacles(self._path):
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if forced else 'NORMAL'}")
            self._carry_out(writes)
        self._written = self._files()

    def _carry_out(self, writes: Sequence[Write]) -> None:
        execute = self._connection.execute
        with _transaction(self._connection):
            for write in writes:
                match write:
                    case EventRows(first, _, data):
                        execute("INSERT INTO events VALUES (?, ?)", (first, data))
                    case Keep(number, version, data):
                        execute("DELETE FROM snapshots WHERE number = ?", (number,))
                        self._connection.executemany(
                            "INSERT INTO snapshots VALUES (?, ?, ?, ?)",
                            ((number, part, version, row) for part, row in enumerate(_parts(data))),
                        )
                    case Abandon(version):
                        execute("DELETE FROM snapshots WHERE version > ?", (version,))
                    case Compact(version):
                        (number,) = execute(
                            "SELECT max(number) FROM snapshots WHERE version = ?", (version,)
                        ).fetchone()
                        if number is not None:
                            execute("DELETE FROM snapshots WHERE number < ?", (number,))
                            execute("DELETE FROM events WHERE first <= ?", (number,))


class SqliteHistory:
    """A journal's file, to be read. A file that holds nothing yet is an empty journal. Each method
    sees the file as it is then; inside a `with` block all of them see it as it was when the block
    began, whatever is compacted away meanwhile. The methods, and the block, raise JournalError."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._moment: sqlite3.Connection | None = None
        self._block = ExitStack()

    def __enter__(self) -> Self:
        self._moment = self._block.enter_context(self._reading())
        return self

    def __exit__(self, *_: object) -> None:
        self._moment = None
        self._block.close()

    def events(self, after: int) -> Iterator[tuple[int, AnyEvent]]:
        with self._reading() as connection:
            (begin,) = connection.execute(
                "SELECT max(first) FROM events WHERE first <= ?", (after + 1,)
            ).fetchone()
            due, last, unread = None, _last(connection), self._held()
            rows = connection.execute(
                "SELECT first, data FROM events WHERE first >= ? ORDER BY first", (begin or 0,)
            )
            for first, data in map(_event_row, rows):
                if first != (due or min(first, after + 1)):
                    raise JournalError(
                        f"the journal {self._path} has no events from {due or after + 1} to "
                        f"{first - 1}: put back a copy of the run"
                    )
                if (unread := unread - len(data)) < 0:
                    raise _Misfit("its events have more bytes than its file")
                events = _decode(data)
                for number, event in enumerate(events, first):
                    if number > after:
                        yield number, event
                due = first + len(events)
            if due is None and after < last:
                raise JournalError(
                    f"the journal {self._path} has no events from {after + 1} to {last}: put "
                    "back a copy of the run"
                )

    def backward(self, after: int, last: int | None = None) -> Iterator[tuple[int, AnyEvent]]:
        with self._reading() as connection:
            due, unread = last, self._held()
            rows = connection.execute(
                "SELECT first, data FROM events WHERE first <= ? ORDER BY first DESC",
                (LAST if last is None else last,),
            )
            for place, (first, data) in enumerate(map(_event_row, rows)):
                if due is not None and due <= after:
                    return
                if (unread := unread - len(data)) < 0:
                    raise _Misfit("its events have more bytes than its file")
                events = _decode(data)
                ends = first + len(events) - 1
                if due is None:
                    due = ends
                if ends < due or (place and ends > due):
                    what = "events {} to {} twice" if ends > due else "no events from {} to {}"
                    between = what.format(min(ends, due) + 1, max(ends, due))
                    raise JournalError(
                        f"the journal {self._path} has {between}: put back a copy of the run"
                    )
                yield from reversed(
                    [
                        (number, event)
                        for number, event in enumerate(events, first)
                        if after < number <= due
                    ]
                )
                due = first - 1
            if due is not None and due > after:
                raise JournalError(
                    f"the journal {self._path} has no events from {after + 1} to {due}: put back a "
                    "copy of the run"
                )

    @property
    def forgotten(self) -> int:
        """The number of the last event that was compacted away; 0 for none."""
        with self._reading() as connection:
            ((first,),) = connection.execute("SELECT min(first) FROM events")
            return _last(connection) if first is None else _number(first, 1) - 1

    def snapshots(self) -> list[tuple[int, int]]:
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT DISTINCT number, version FROM snapshots ORDER BY number"
            )
            found = [
                (_number(number), _number(version)) for number, version in islice(rows, STATES)
            ]
            if next(rows, None) is not None:
                raise _Misfit(f"it has more than {STATES:,} snapshots")
            return found

    def snapshot(self, number: int) -> Snapshot:
        with self._reading() as connection:
            written, most = bytearray(), min(STATE_BYTES, self._held())
            rows = connection.execute(
                "SELECT part, data FROM snapshots WHERE number = ? ORDER BY part", (number,)
            )
            for due, (part, data) in enumerate(rows):
                if part != due:
                    raise _Misfit("a part of a snapshot is missing")
                if len(written) + len(_blob(data)) > most:
                    raise _Misfit(f"a snapshot has more than the {most:,} bytes that it may have")
                written += _blob(data)
            if written:
                return _decode_snapshot(written)
        raise JournalError(
            f"the journal {self._path} has no snapshot of the state after event {number}"
        )

    def _held(self) -> int:
        """Bytes that the files of the journal really hold: rows may share pages, or be holes."""
        log = self._path.with_name(self._path.name + "-wal")
        try:
            return held_bytes(self._path) + held_bytes(log)
        except OSError as error:
            raise JournalError(
                f"the journal {self._path} could not be used ({error.strerror}): {remedy(error)}"
            ) from error

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if self._moment is not None:
            with errors(self._path):
                yield self._moment
            return
        if not self._path.is_file():
            raise JournalError(f"there is no journal at {self._path}; put it back")
        uri = _read_only(self._path)
        with (
            errors(self._path),
            closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_S)) as file,
            closing(sqlite3.connect(":memory:", isolation_level=None)) as nothing,
        ):
            file.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ROW_BYTES)
            file.execute("BEGIN")
            connection = file if _has_tables(file) else nothing
            if connection is nothing:
                _make(nothing, "")
            _check(connection, self._path, None)
            yield connection


def copy(path: Path, target: Path) -> None:
    """Write the journal as it is at one moment into the file `target`, which is replaced; its
    writer goes on meanwhile. Raises JournalError."""
    target.unlink(missing_ok=True)
    uri = _read_only(path)
    with (
        errors(path),
        closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as source,
        closing(sqlite3.connect(target, isolation_level=None)) as made,
    ):
        source.backup(made)
        # one file, not three: it gets its name by a rename
        made.execute("PRAGMA journal_mode = DELETE")


def _read_only(path: Path) -> str:
    """Return the URI of a connection that reads. Also such a connection writes into the index of
    the log, where readers note how far they read, so that file must be the journal's own. Raises
    JournalError."""
    index = path.with_name(path.name + "-shm")
    if what := not_its_own(index):
        raise JournalError(
            f"{index}: this is {what}, and whoever reads the journal writes into it; remove it"
        )
    return f"{path.absolute().as_uri()}?mode=ro"


def _open(path: Path, run: str) -> tuple[sqlite3.Connection, int]:
    """A connection for writing, and the number of the last event."""
    with errors(path):
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=BUSY_S
        )
    try:
        with errors(path):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ROW_BYTES)
            if not _has_tables(connection):
                connection.execute("PRAGMA journal_mode = WAL")
                with _transaction(connection):
                    _make(connection, run)
            _check(connection, path, run)
            connection.execute("PRAGMA journal_mode = WAL")  # a copy is one file, without a log
            connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
            return connection, _last(connection)
    except BaseException:
        connection.close()
        raise


def _has_tables(connection: sqlite3.Connection) -> bool:
    [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
    return bool(tables)


def _make(connection: sqlite3.Connection, run: str) -> None:
    connection.execute("CREATE TABLE header (format INTEGER NOT NULL, run TEXT NOT NULL)")
    connection.execute("CREATE TABLE events (first INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    connection.execute(
        "CREATE TABLE snapshots (number INTEGER NOT NULL, part INTEGER NOT NULL, "
        "version INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (number, part))"
    )
    connection.execute("INSERT INTO header VALUES (?, ?)", (FORMAT, run))


def _last(connection: sqlite3.Connection) -> int:
    """The number of the last event, 0 for none; it may be compacted away, and then a snapshot has
    its number."""
    rows = connection.execute("SELECT first, data FROM events ORDER BY first DESC LIMIT 1")
    for first, data in map(_event_row, rows):
        return first + len(_decode(data)) - 1
    [(number,)] = connection.execute("SELECT max(number) FROM snapshots")
    return 0 if number is None else _number(number)


def _parts(data: bytes | bytearray) -> Iterator[bytes | bytearray]:
    """Cut a snapshot into rows."""
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]


class _Misfit(Exception):
    """Raised for a value that this asyncrl never writes into a row."""


def _event_row(row: tuple[object, object]) -> tuple[int, bytes]:
    return _number(row[0], 1), _blob(row[1])


def _number(value: object, least: int = 0) -> int:
    """A column's number, checked because SQLite does not enforce column types."""
    if not isinstance(value, int) or not least <= value <= LAST:
        raise _Misfit("a number of an event or a version is not a number")
    return value


def _blob(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise _Misfit("its data is not bytes")
    return value


def _schema(connection: sqlite3.Connection) -> set[tuple[str, str, str, str | None]]:
    """All that a database has, but for the statistics that ANALYZE leaves: type, name, table, and
    the statement that made it. Of what no journal has, a part is enough."""
    rows = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master "
        "WHERE NOT (type = 'table' AND name IN ('sqlite_stat1', 'sqlite_stat4'))"
    )
    return {*islice(rows, SCHEMA)}


def _own_schema() -> set[tuple[str, str, str, str | None]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        _make(made, "")
        return _schema(made)


def _check(connection: sqlite3.Connection, path: Path, run: str | None) -> None:
    """Check that the database is a journal, and has nothing else: a trigger, a view or a generated
    column of somebody's would act when a run reads or writes."""
    own, found = _own_schema(), _schema(connection)
    ours = {entry for entry in own if entry[1] == "header"} <= found
    header = connection.execute("SELECT format, run FROM header").fetchone() if ours else None
    if header is None:
        raise JournalError(
            f"{path} is a database, but not a journal of asyncrl: give another run.dir, or put "
            "back a copy of the run"
        )
    version, its_run = header
    if version != FORMAT:
        raise JournalError(
            f"the journal {path} has format {escaped(repr(version), 20)}, but this asyncrl reads "
            f"format {FORMAT}: continue with the asyncrl that wrote it, or start a run in another "
            "run.dir"
        )
    if other := sorted(found ^ own, key=repr):
        kind, name, *_ = other[0]
        raise JournalError(
            f"the journal {path} is not as asyncrl makes it ({escaped(f'{kind} {name}', 100)}): "
            "give another run.dir, or put back a copy of the run"
        )
    if run is not None and its_run != run:
        raise JournalError(
            f"the journal {path} belongs to run {escaped(repr(its_run), 100)}, not to {run!r}: "
            "give another run.dir, or put back a copy of the run"
        )


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _obstacle(error: sqlite3.OperationalError) -> type[DiskNotReady] | None:
    # errors raised by Python itself have no code
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return _OBSTACLES.get(code) or _OBSTACLES.get(code & 0xFF)


@contextmanager
def _obstacles(path: Path) -> Iterator[None]:
    """Raise DiskNotReady for an error after which a retry may succeed."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if (obstacle := _obstacle(error)) is None:
            raise
        raise obstacle(f"the journal {path} could not be written ({error})") from error


@contextmanager
def errors(path: Path) -> Iterator[None]:
    """Raise JournalError, with a sentence, for an error of SQLite or of the decoder."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise JournalError(
            f"the journal {path} got events from another writer: two runs write to it; give each "
            "its own run.dir"
        ) from error
    except sqlite3.OperationalError as error:
        obstacle = _obstacle(error)
        kind = JournalNotReady if obstacle else JournalError
        if obstacle is None and (cause := opening(path)):  # SQLite does not say it
            raise kind(
                f"the journal {path} could not be used ({cause.strerror}): {remedy(cause)}"
            ) from error
        helps = (obstacle or Unwritable).helps
        raise kind(f"the journal {path} could not be used ({error}): {helps}") from error
    except sqlite3.Error as error:
        raise JournalError(
            f"the journal {path} cannot be read ({error}): it is damaged, or not a journal; put "
            "back a copy of the run, or begin a new run in another run.dir"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, _Misfit) as error:
        raise JournalError(
            f"the journal {path} holds something that is not an event of this asyncrl "
            f"({escaped(str(error), 300)}): use the version that wrote it, put back a "
            "copy of the run, or begin a new run in another run.dir"
        ) from error
