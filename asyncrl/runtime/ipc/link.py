"""Messages between processes, over a pipe. Invariant: a frame arrives whole or the link is closed.

What a peer announces costs address space only; what it sent costs memory. The form of a frame is in
`framing`, and how two processes get a link in `endpoints`.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec
import trio

from asyncrl.messages import Message
from asyncrl.runtime.ipc.errors import EndOfStream, LinkBroken, LinkError
from asyncrl.runtime.ipc.framing import BULKY, MAX_FRAME, ArrivingFrame, begin_frame, encode_frame
from asyncrl.runtime.ipc.pipes import FAILURES, Pipe, Turns

if TYPE_CHECKING:
    from typing_extensions import Buffer

FRAME_S = 30.0
"""Seconds that a frame may keep its receiver waiting once it has begun; a large one gets one more
second for each FRAME_RATE bytes."""
FRAME_RATE = 2**20
_AHEAD = 2**16  # bytes read in one system call if frames are small
_LITTLE_AHEAD = 2**12


class LinkStatistics(msgspec.Struct, frozen=True):
    """Since the link was made. `blocked_s`: seconds sends waited, for the peer or for one
    another."""

    frames_sent: int
    bytes_sent: int
    frames_received: int
    bytes_received: int
    blocked_s: float


class Link:
    """One end of a connection; it owns `pipe`. `peer` names the other end in sentences; set it
    once the peer has introduced itself.

    Any number of tasks may send, one receives. Each call sees a cancellation, but lets other tasks
    run only now and then (`pipes.Turns`). A receive that raised LinkError has closed the link;
    if the connection failed under a send, what the peer had sent before can still be received.
    """

    def __init__(self, pipe: Pipe, *, peer: str, max_frame: int = MAX_FRAME) -> None:
        self.peer = peer
        self._pipe = pipe
        self._max_frame = max_frame
        self._turns = Turns()
        self._closed: str | None = None  # why nothing is sent or received any more
        self._unsendable: str | None = None  # why nothing is sent any more
        self._sending = trio.Lock()
        self._queued_s = 0.0
        self._receiving = False
        # bytes [_at, _to) are received, and not yet part of a frame
        self._ahead = memoryview(bytearray(_AHEAD))
        self._at = self._to = 0
        self._unfinished: ArrivingFrame | None = None
        # how long the frame that has begun may still keep its receiver waiting
        self._patience_s = FRAME_S
        self._bulky = False
        self._frames_sent = self._bytes_sent = self._frames_received = self._bytes_received = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close at once. What was sent still arrives, unless this end has not received all that the
        peer sent it: the end that sends last waits for the other's end of stream."""
        await self._close(f"the link to {self.peer} was closed here")
        await trio.lowlevel.checkpoint()

    def statistics(self) -> LinkStatistics:
        return LinkStatistics(
            frames_sent=self._frames_sent,
            bytes_sent=self._bytes_sent,
            frames_received=self._frames_received,
            bytes_received=self._bytes_received,
            blocked_s=self._queued_s + self._pipe.blocked_s,
        )

    # ------------------------------------------------------------------------------------- sending

    async def send(self, message: Message, *buffers: Buffer) -> None:
        """Send one frame: `message`, and C-contiguous arrays or bytes, which must not change before
        this returns.

        If it is cancelled before the first byte left, nothing was sent. If later, the link is
        closed: no frame follows half a frame. Raises LinkBroken, or ValueError for a frame over the
        limits.
        """
        parts, size = encode_frame(message, buffers, self._max_frame)
        await self._turns.take(size)
        if self._sending.locked():
            since = trio.current_time()
            try:
                await self._sending.acquire()
            finally:
                self._queued_s += trio.current_time() - since
        else:
            self._sending.acquire_nowait()
        try:
            if (why := self._closed or self._unsendable) is not None:
                raise LinkBroken(why)
            try:
                await self._pipe.send(parts)
            except FAILURES as error:
                self._unsendable = (
                    self._closed
                    or f"the link to {self.peer} broke: {error or type(error).__name__}"
                )
                raise LinkBroken(self._unsendable) from error
            except BaseException:
                if self._pipe.torn:
                    await self._close(
                        f"the link to {self.peer} was closed because a send was cancelled in the "
                        "middle of a frame"
                    )
                raise
            self._frames_sent += 1
            self._bytes_sent += size
        finally:
            self._sending.release()

    # ----------------------------------------------------------------------------------- receiving

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Message, tuple[memoryview, ...]]:
        try:
            return await self.receive()
        except EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> tuple[Message, tuple[memoryview, ...]]:
        """The next frame: its message and its buffers, which are the caller's: writable bytes, each
        aligned to 8.

        A cancelled call loses nothing: the next one goes on where it stopped. Raises EndOfStream if
        the peer closed between two frames, LinkError for a frame that breaks the rules or makes no
        progress (FRAME_S), LinkBroken for an end inside a frame or a failing connection, and
        `trio.BusyResourceError` if another task receives.
        """
        if self._receiving:
            raise trio.BusyResourceError(f"another task receives on the link to {self.peer}")
        self._receiving = True
        try:
            await self._turns.take(0)
            if self._closed is not None:
                raise LinkBroken(self._closed)
            while (frame := self._unfinished) is None:
                await self._fetch(self._begin())
            while frame.filled < len(frame.body):
                frame.filled += await self._read(frame.body[frame.filled :], inside=True)
            self._unfinished = None
            self._patience_s = FRAME_S
            self._frames_received += 1
            return frame.message, frame.buffers()
        except LinkError as error:
            await self._close(str(error))
            raise
        finally:
            self._receiving = False

    def _begin(self) -> int:
        """Begin the frame that is ahead, as far as its buffers. If too little of it has arrived,
        return the bytes that it needs."""
        frame = begin_frame(
            self._ahead, self._at, self._to, max_frame=self._max_frame, peer=self.peer
        )
        if isinstance(frame, int):
            return frame
        self._at, self._unfinished = frame.end, frame
        self._patience_s += len(frame.body) / FRAME_RATE
        self._bulky = len(frame.body) >= BULKY
        return 0

    async def _fetch(self, size: int) -> None:
        """Read until at least `size` bytes are ahead."""
        while (have := self._to - self._at) < size:
            if self._at or have == len(self._ahead):
                kept = bytes(self._ahead[self._at : self._to])
                # a long message gets twice the room that it has filled
                fitting = max(_AHEAD, min(size, 2 * have))
                if fitting != len(self._ahead):
                    self._ahead = memoryview(bytearray(fitting))
                self._ahead[:have] = kept
                self._at, self._to = 0, have
            # bytes of a large body that are read ahead are copied once more, so read few
            room = self._ahead[have : max(size, _LITTLE_AHEAD if self._bulky else _AHEAD)]
            self._to += await self._read(room, inside=have > 0)

    async def _read(self, view: memoryview, *, inside: bool) -> int:
        """Read at least one byte into `view`; `inside` says whether a frame has begun. A cancelled
        call has read nothing."""
        await self._turns.take(len(view))
        try:
            count = await (self._receive_in_time(view) if inside else self._pipe.receive_into(view))
        except FAILURES as error:
            raise LinkBroken(
                self._closed or f"the link to {self.peer} broke: {error or type(error).__name__}"
            ) from error
        if not count:
            if inside:
                raise LinkBroken(f"{self.peer} ended in the middle of a frame")
            raise EndOfStream(f"{self.peer} closed the link")
        self._bytes_received += count
        return count

    async def _receive_in_time(self, view: memoryview) -> int:
        """Receive from the pipe, within the frame's patience. Only waiting counts: a receiver
        that is busy loses no patience."""
        since, count = trio.current_time(), 0
        try:
            with trio.CancelScope(deadline=since + self._patience_s) as scope:
                count = await self._pipe.receive_into(view)
        finally:
            self._patience_s -= trio.current_time() - since
        if scope.cancelled_caught:
            raise LinkError("slow", f"{self.peer} began a frame and did not finish it in time")
        return count

    async def _close(self, sentence: str) -> None:
        if self._closed is None:
            self._closed = sentence
            await self._pipe.aclose()
