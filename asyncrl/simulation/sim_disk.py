"""Simulated disk of the journal, and checkpoints: both outlive a process. Invariant: a commit is
there whole or not at all.

A process writes through a `Mount`, which its death takes away: the code of a dead process that
still runs writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import trio

from asyncrl.experience.events import AnyEvent
from asyncrl.experience.snapshot import Snapshot
from asyncrl.journal.disk import Abandon, Compact, DiskFull, EventRows, JournalError, Keep, Write
from asyncrl.simulation.fake_learner import FakeProximal
from asyncrl.training.checkpoint_index import CheckpointError

COMMIT_S = 0.004

_events: msgspec.msgpack.Decoder[list[AnyEvent]] = msgspec.msgpack.Decoder(list[AnyEvent])
_snapshot = msgspec.msgpack.Decoder(Snapshot)


class SimDisk:
    """A disk. If it is `full` or `broken`, commits fail."""

    def __init__(self) -> None:
        self.rows: list[EventRows] = []
        self.kept: list[Keep] = []
        self.lines: list[bytes] = []  # of the curve
        self.full = False
        self.broken = False

    @property
    def last(self) -> int:
        return (
            self.rows[-1].first + self.rows[-1].count - 1
            if self.rows
            else max((keep.number for keep in self.kept), default=0)
        )

    def write(self, write: Write) -> None:
        match write:
            case EventRows(first, count, data):
                if first != self.last + 1:
                    raise JournalError(f"event {first} was committed after event {self.last}")
                self.rows.append(EventRows(first, count, bytes(data)))
            case Keep(number, version, data):
                self.kept = sorted(
                    [k for k in self.kept if k.number != number]
                    + [Keep(number, version, bytes(data))],
                    key=lambda k: k.number,
                )
            case Compact(version):
                newest = max((k.number for k in self.kept if k.version == version), default=0)
                self.kept = [k for k in self.kept if k.number >= newest]
                self.rows = [
                    row
                    for row in self.rows
                    if row.first + row.count - 1 > newest or row is self.rows[-1]
                ]
            case Abandon(version):
                self.kept = [k for k in self.kept if k.version <= version]

    # ------------------------------------------------------------------------ journal.disk.History

    def events(self, after: int) -> Iterator[tuple[int, AnyEvent]]:
        """The committed events after that number."""
        if self.rows and self.rows[0].first > after + 1:
            raise JournalError(
                f"the events after {after} are compacted away: the first one left is "
                f"{self.rows[0].first}"
            )
        for row in self.rows:
            if row.first + row.count - 1 > after:
                for number, event in enumerate(_events.decode(row.data), row.first):
                    if number > after:
                        yield number, event

    def backward(self, after: int, last: int | None = None) -> Iterator[tuple[int, AnyEvent]]:
        """The same from event `last` on, the last one first."""
        found = [one for one in self.events(after) if last is None or one[0] <= last]
        return reversed(found)

    def snapshots(self) -> list[tuple[int, int]]:
        """Number and version of each snapshot."""
        return [(keep.number, keep.version) for keep in self.kept]

    def snapshot(self, number: int) -> Snapshot:
        """The snapshot of that number."""
        return _snapshot.decode(next(keep.data for keep in self.kept if keep.number == number))


class Mount:
    """A journal's `Disk`, as one process has it."""

    def __init__(self, sim_disk: SimDisk) -> None:
        self._disk = sim_disk
        self.last = sim_disk.last
        self.gone = False

    @property
    def size(self) -> int:
        return sum(len(row.data) for row in self._disk.rows) + sum(
            len(keep.data) for keep in self._disk.kept
        )

    async def commit(self, writes: Sequence[Write]) -> None:
        """Commit all writes or none, in `COMMIT_S`. Raises DiskFull, or JournalError for good."""
        await trio.sleep(COMMIT_S)
        if self.gone:
            return
        if self._disk.full:
            raise DiskFull("the simulated disk is full")
        if self._disk.broken:
            raise JournalError("the simulated disk is broken")
        for write in writes:
            self._disk.write(write)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@dataclass
class SimCheckpoint:
    """Weights of a version, the event that they belong to, and the learner's scores. One that is
    `damaged` does not read; one set `aside` is nobody's."""

    version: int
    weights: int
    cursor: int
    proximal: FakeProximal | None = None
    damaged: bool = False
    aside: bool = False

    def verify(self) -> None:
        """Raise CheckpointError if it is damaged."""
        if self.damaged:
            raise CheckpointError(f"the checkpoint of version {self.version} is damaged")

    def set_aside(self) -> None:
        """Put it aside: nothing starts from it any more."""
        self.aside = True
