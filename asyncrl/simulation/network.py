"""Pipes in memory. Invariant: the bytes that arrive are a prefix of those that were sent, however
the wire is delayed, cut or frozen; only `edit` loses or repeats a frame.

A pipe is below `asyncrl.runtime.ipc.link.Link`, which sends one frame in one call. Without faults a
frame costs an append and a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import trio

from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.pipes import Bytes

CAPACITY = 4 * 2**20
"""Bytes under way in one direction before a sender waits, as a socket's buffers do."""


class Wire:
    """One direction of a connection. `delay_s` seconds are added to what is sent from now on; while
    somebody holds it, nothing arrives and nobody is told."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self._holds = 0
        self.edit: Callable[[bytes], Iterable[bytes]] | None = None
        """The frames that arrive in place of a frame: none, itself, or several."""
        self._arriving: deque[tuple[float, memoryview]] = deque()
        self._bytes = 0
        self._last = 0.0
        self.ended = False
        self.cut = False
        self.news = trio.lowlevel.ParkingLot()
        self.room = trio.lowlevel.ParkingLot()

    @property
    def full(self) -> bool:
        return self._bytes >= CAPACITY

    def put(self, data: bytes) -> None:
        for frame in (data,) if self.edit is None else self.edit(data):
            if self.delay_s or self._last:
                self._last = max(self._last, trio.current_time() + self.delay_s)
            self._arriving.append((self._last, memoryview(frame)))
            self._bytes += len(frame)
        if self.news:
            self.news.unpark()

    async def take(self, view: memoryview) -> int:
        """Bytes that have arrived, 0 at the end."""
        while True:
            if self.cut:
                raise trio.BrokenResourceError("the connection was reset")
            due = None
            if not self._holds:
                if self._arriving:
                    due, data = self._arriving[0]
                    if not due or due <= trio.current_time():
                        count = min(len(data), len(view))
                        view[:count] = data[:count]
                        if count == len(data):
                            self._arriving.popleft()
                        else:
                            self._arriving[0] = due, data[count:]
                        self._bytes -= count
                        if self.room:
                            self.room.unpark_all()
                        return count
                elif self.ended:
                    return 0
            if due is None:
                await self.news.park()
            else:
                with trio.move_on_at(due):
                    await self.news.park()

    def end(self) -> None:
        """Send nothing more. What is under way arrives."""
        self.ended = True
        self.wake()

    def hold(self, held: bool) -> None:
        """Stop what arrives, or let it arrive again; holds add up."""
        self._holds += 1 if held else -1
        self.wake()

    def wake(self) -> None:
        self.news.unpark_all()
        self.room.unpark_all()


class MemoryPipe:
    """One end of a connection. The end of a process that is stopped is frozen: it takes nothing and
    gives nothing until the process goes on."""

    def __init__(self, out: Wire, into: Wire) -> None:
        self.torn = False
        self.blocked_s = 0.0
        self.out = out
        self.into = into
        self.sent: deque[bytes] = deque(
            maxlen=0
        )  # the last frames, where somebody wants to send them again
        self._frozen = False
        self._closed = False
        self._thaw = trio.lowlevel.ParkingLot()

    async def send(self, parts: Sequence[Bytes]) -> None:
        while self._frozen or self.out.full:
            self._check()
            since = trio.current_time()
            try:
                await (self._thaw if self._frozen else self.out.room).park()
            finally:
                self.blocked_s += trio.current_time() - since
        self._check()
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        self.sent.append(data)
        self.out.put(data)

    async def receive_into(self, view: memoryview) -> int:
        if self._closed:
            raise trio.ClosedResourceError
        return await self.into.take(view)

    async def aclose(self) -> None:
        self.die()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if self.out.cut or self.into.ended:
            raise trio.BrokenResourceError("the peer is gone")

    # -------------------------------------------------------------------------------------- faults

    def die(self) -> None:
        """Close this end at once. What it has sent still arrives."""
        self._closed = True
        self.out.end()
        self.into.cut = True  # for whoever reads at this end
        self.out.wake()
        self.into.wake()
        self._thaw.unpark_all()

    def cut(self) -> None:
        """Reset the connection, for both ends. What is under way is lost."""
        for wire in (self.out, self.into):
            wire.cut = True
            wire.wake()
        self._thaw.unpark_all()

    def freeze(self, frozen: bool) -> None:
        """Stop this end, or let it go on."""
        if frozen != self._frozen:
            self._frozen = frozen
            self.into.hold(frozen)
            self._thaw.unpark_all()


def pipes() -> tuple[MemoryPipe, MemoryPipe]:
    """The two ends of a connection."""
    one, other = Wire(), Wire()
    return MemoryPipe(one, other), MemoryPipe(other, one)


def links() -> tuple[Link, Link]:
    """The two ends of a link without faults."""
    ours, theirs = pipes()
    return Link(ours, peer="the right end"), Link(theirs, peer="the left end")
