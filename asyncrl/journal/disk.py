"""Protocols of a journal's storage. Invariant: a commit is whole or not there at all, and what is
there is the first events, each once, in order.

`Disk` is all that the writer knows, so that the simulation can give it a disk that fills up, fails
or forgets. The real one is `sqlite.SqliteDisk`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol

import msgspec

from asyncrl.experience.events import AnyEvent
from asyncrl.experience.experience import Experience
from asyncrl.experience.snapshot import Snapshot


class JournalError(Exception):
    """The journal cannot be read or written; the message is a sentence that says what to do."""


class DiskNotReady(Exception):
    """A commit could not be made, and left no trace. It may be tried again; `remedy` says what
    makes it succeed."""

    remedy: ClassVar[str]


class DiskFull(DiskNotReady):
    """A commit found no room."""

    remedy = "make room"


class Unwritable(DiskNotReady):
    """A commit met an error of the file: a quota that is used up, or a disk that is not
    writable."""

    remedy = "see that its disk has room and is writable"


class Locked(DiskNotReady):
    """A commit found that another process writes, or keeps others from writing."""

    remedy = "end the process that holds it"


class EventRows(msgspec.Struct, frozen=True):
    """`count` events from number `first`, as one msgpack array."""

    first: int
    count: int
    data: bytes | bytearray


class Keep(msgspec.Struct, frozen=True):
    """Write the snapshot of the state after event `number`, which the checkpoint of `version`
    belongs to. It takes the place of one of the same number."""

    number: int
    version: int
    data: bytes | bytearray


class Compact(msgspec.Struct, frozen=True):
    """Delete the events up to the newest snapshot for `version`, and older snapshots: nobody goes
    back behind it any more."""

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
        """Carry out all of it, in order, or none. Raises DiskNotReady where it may be tried
        again, and JournalError where nothing can ever be written again."""
        ...

    async def aclose(self) -> None: ...


class JournalReader(Protocol):
    """Contents of a disk, to be read, also while somebody writes."""

    def events(self, after: int) -> Iterator[tuple[int, AnyEvent]]:
        """Pairs of number and event: the events with a number larger than `after`, in order. Raises
        JournalError where they are compacted away, or broken."""
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
