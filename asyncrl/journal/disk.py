"""Protocols of a journal's storage. Invariant: a commit is stored whole or not at all, and the
stored events are the first ones, each once, in order.

The writer only uses `Disk`, so that the simulation can give it a disk that fills up, fails or loses
data. The real one is `sqlite.SqliteDisk`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from asyncrl.experience.events import AnyEvent
from asyncrl.experience.experience import Experience
from asyncrl.experience.snapshot import Snapshot
from asyncrl.os_errors import OTHER


class JournalError(Exception):
    """Raised where the journal cannot be read or written; the message is one sentence with a
    remedy."""


class JournalNotReady(JournalError):
    """Raised where the journal's disk is not ready, and was waited for as long as that is worth it:
    it has no room, is not writable, or is locked. The message says what to do."""


class DiskNotReady(Exception):
    """Raised for a commit that failed without a trace. It may be retried; `remedy` says what makes
    it succeed: what helps its kind, or `remedy` as the error's number has it."""

    helps = OTHER

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.remedy = remedy or self.helps


class DiskFull(DiskNotReady):
    """A commit found no room."""

    helps = "make room"


class Unwritable(DiskNotReady):
    """A commit met an error of the file: a quota that is used up, or a disk that is not
    writable."""


class Locked(DiskNotReady):
    """A commit found that another process writes, or holds a lock."""

    helps = "end the process that holds it"


class Gone(DiskNotReady):
    """A commit found that the file is not at its path, where a resume would look for it."""

    helps = "put it back"


class EventRows(msgspec.Struct, frozen=True):
    """`count` events from number `first`, as one msgpack array."""

    first: int
    count: int
    data: bytes | bytearray


class Keep(msgspec.Struct, frozen=True):
    """Write the snapshot of the state after event `number`, for the checkpoint of `version`. It
    replaces one of the same number."""

    number: int
    version: int
    data: bytes | bytearray


class Compact(msgspec.Struct, frozen=True):
    """Delete the events up to the newest snapshot for `version`, and older snapshots, which are not
    needed any more."""

    version: int


class Abandon(msgspec.Struct, frozen=True):
    """Delete the snapshots for versions above `version`: their checkpoints are gone."""

    version: int


Write = EventRows | Keep | Compact | Abandon


class Disk(Protocol):
    """Storage of one journal, for its writer. `last` is the number of the last event when it was
    opened, 0 for none."""

    @property
    def last(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes that it takes now."""
        ...

    async def commit(self, writes: Sequence[Write]) -> None:
        """Carry out all of it, in order, or none. Raises DiskNotReady where a retry may succeed,
        and JournalError where the journal cannot be written any more."""
        ...

    async def aclose(self) -> None: ...


class JournalReader(Protocol):
    """Contents of a disk for reading, also during writes."""

    def events(self, after: int) -> Iterator[tuple[int, AnyEvent]]:
        """Pairs of number and event: the events with a number larger than `after`, in order. Raises
        JournalError where they are compacted away, or broken."""
        ...

    def backward(self, after: int, last: int | None = None) -> Iterator[tuple[int, AnyEvent]]:
        """The same pairs from event `last` (None: the last one on disk) back to the one behind
        `after`. What is not asked for is not read. Raises JournalError as `events`."""
        ...

    def snapshots(self) -> list[tuple[int, int]]:
        """Pairs of number and version, one for each snapshot, in the order of their numbers."""
        ...

    def snapshot(self, number: int) -> Snapshot:
        """The snapshot of that number."""
        ...


def state(history: JournalReader) -> Experience:
    """The state after the last event: the newest snapshot, and the events since. Raises
    JournalError, and ImpossibleEvent where the events do not follow from one another."""
    after, experience = 0, Experience()
    for number, _ in history.snapshots()[-1:]:
        after, experience = number, Experience.of(history.snapshot(number))
    for _, event in history.events(after):
        experience.apply(event)
    return experience
