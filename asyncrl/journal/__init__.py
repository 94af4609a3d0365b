"""The journal: events in, events out. Invariant: what is on disk is always the first `durable`
events, each once and in order.

writer.py   commits events in groups; it knows nothing of files
disk.py     the protocol of what the writer writes to
sqlite.py   the file, and its format number
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from asyncrl.experience.events import AnyEvent
from asyncrl.experience.experience import Experience
from asyncrl.journal.disk import Disk, JournalError, JournalNotReady, JournalReader, state
from asyncrl.journal.sqlite import SqliteDisk, SqliteHistory
from asyncrl.journal.writer import Journal, JournalStatistics

__all__ = [
    "Disk",
    "Journal",
    "JournalError",
    "JournalNotReady",
    "JournalReader",
    "JournalStatistics",
    "SqliteDisk",
    "SqliteHistory",
    "fold",
    "read",
    "state",
]


def read(path: str | Path, after: int = 0) -> Iterator[tuple[int, AnyEvent]]:
    """Pairs of number and event: the events on disk with a number larger than `after` that are not
    compacted away. It may be read while a run writes. Raises JournalError."""
    with SqliteHistory(path) as history:
        yield from history.events(max(after, history.forgotten))


def fold(path: str | Path) -> Experience:
    """The state after the events on disk. Raises JournalError, and ImpossibleEvent where they do
    not follow from one another."""
    with SqliteHistory(path) as history:
        return state(history)
