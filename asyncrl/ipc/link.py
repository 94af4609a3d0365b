"""Messages between processes: framed, typed, authenticated. Invariant: a frame arrives whole or the
link is closed.

A frame is `u32 bytes that follow, u32 bytes of message, u32 number of buffers, u32 bytes of each
buffer`, the message in msgpack, and the buffers, each padded with zeros to a multiple of 8 bytes;
integers are little-endian. Limits are checked before anything is allocated, and nothing but
`messages.ALL` is ever built from what arrives. What a peer announces costs address space; memory is
what it sent.
"""

from __future__ import annotations

import errno
import math
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Union

import msgspec
import numpy as np
import trio

from asyncrl.ipc.address import Address, TcpAddress, UnixAddress, dial, listening, parse_address
from asyncrl.ipc.framing import (
    FAILURES,
    Bytes,
    LinkBroken,
    LinkError,
    Pipe,
    Refusal,
    SocketPipe,
    StreamPipe,
    Turns,
)
from asyncrl.ipc.keys import new_key, prove_to_client, prove_to_server, proving, read_key, write_key
from asyncrl.ipc.messages import ALL, Message
from asyncrl.ipc.tls import Credentials, Tls, TlsPipe

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "Address",
    "EndOfStream",
    "Link",
    "LinkBroken",
    "LinkError",
    "LinkStatistics",
    "Refusal",
    "TcpAddress",
    "Tls",
    "UnixAddress",
    "connect",
    "memory_links",
    "new_key",
    "parse_address",
    "read_key",
    "serve",
    "write_key",
]

MAX_FRAME = 256 * 2**20
MAX_MESSAGE = 4 * 2**20
"""Bytes of a message without its buffers: decoded, they can take some thirty times the memory."""
MAX_BUFFERS = 8
FRAME_S = 30.0
"""Seconds that a frame may keep its receiver waiting once it has begun; a large one gets a second
more for each FRAME_RATE bytes."""
FRAME_RATE = 2**20
AUTHENTICATION_S = 5.0
UNAUTHENTICATED = 64
"""Connections that may be proving the key at one time; for another one the oldest has to go."""
MAX_LINKS = 4096
"""Links that a server keeps at one time."""
REFUSAL_S = 0.01
"""Seconds by which a refused connection puts off the next one, so that most of a server's time
stays for those who are in."""
DESCRIPTORS_S = 0.1
"""As `REFUSAL_S`, where this process has no descriptor left: the connection stays in the queue
until then."""

_PREFIX = struct.Struct("<III")
_HEADS = [struct.Struct(f"<{3 + count}I") for count in range(MAX_BUFFERS + 1)]
_PADDING = [bytes(size) for size in range(8)]
_AHEAD = 2**16  # bytes read in one system call where frames are small
_LITTLE_AHEAD = 2**12
_BULKY = (
    2**14
)  # bytes of buffers from which they are neither joined with the head to be sent, nor read ahead of

_NOTHING = memoryview(bytearray())
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Union[ALL])
_encoder = msgspec.msgpack.Encoder()


class EndOfStream(Exception):
    """The peer closed the link, between two frames."""


class LinkStatistics(msgspec.Struct, frozen=True):
    """Since the link was made. `blocked_s`: seconds sends waited, for the peer or for one
    another."""

    frames_sent: int
    bytes_sent: int
    frames_received: int
    bytes_received: int
    blocked_s: float


class _Unfinished(msgspec.Struct, eq=False):
    """A frame whose message is read, and whose buffers are filled up to `filled`; it outlives a
    cancelled receive."""

    message: Message
    sizes: tuple[int, ...]
    body: memoryview
    filled: int


class Link:
    """One end of a connection; it owns `pipe`. `peer` names the other end in sentences; set it once
    it has said who it is.

    Any number of tasks may send, one receives. Each call sees a cancellation, but lets other tasks
    run only now and then (`wire.Turns`). A receive that raised LinkError has closed the link; where
    the connection failed under a send, what the peer had sent before can still be received.
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
        self._ahead = memoryview(
            bytearray(_AHEAD)
        )  # bytes [_at, _to) are received, and not yet part of a frame
        self._at = self._to = 0
        self._unfinished: _Unfinished | None = None
        self._patience_s = (
            FRAME_S  # how long the frame that has begun may still keep its receiver waiting
        )
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
        peer sent it: the end that has the last word waits for the other's end of stream."""
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

        Cancelled before its first byte left, nothing was sent. Cancelled after it, the link is
        closed: no frame follows half a frame. Raises LinkBroken, or ValueError for a frame over the
        limits.
        """
        parts, size = self._frame(message, buffers)
        await self._send(parts, size, 1)

    async def send_many(self, messages: Iterable[Message]) -> None:
        """Send messages without buffers, in one write; cancelled, as `send`."""
        frames = [self._frame(message, ())[0][0] for message in messages]
        if frames:
            joined = b"".join(frames)
            await self._send([joined], len(joined), len(frames))

    def _frame(self, message: Message, buffers: tuple[Buffer, ...]) -> tuple[list[Bytes], int]:
        """The frame, in non-empty parts, and its bytes."""
        if len(buffers) > MAX_BUFFERS:
            raise ValueError(
                f"{type(message).__name__} has {len(buffers)} buffers, and a frame takes at most "
                f"{MAX_BUFFERS}; join some"
            )
        views = [_flat(buffer) for buffer in buffers]
        sizes = [len(view) for view in views]
        head = _HEADS[len(views)]
        first = bytearray(head.size)
        _encoder.encode_into(message, first, head.size)
        written = len(first) - head.size
        body = sum(_padded(size) for size in sizes)
        size = len(first) + body
        if size > self._max_frame:
            raise ValueError(
                f"{type(message).__name__} is a frame of {size} bytes, and a link takes at most "
                f"{self._max_frame}; split it"
            )
        if written > MAX_MESSAGE:
            raise ValueError(
                f"{type(message).__name__} is {written} bytes without its buffers, over the "
                f"{MAX_MESSAGE} of a link; split it"
            )
        head.pack_into(first, 0, size - _PREFIX.size, written, len(views), *sizes)
        if body < _BULKY:
            for view in views:
                first += view
                first += _PADDING[-len(view) % 8]
            return [first], size
        parts: list[Bytes] = [first]
        for view in views:
            parts += (part for part in (view, _PADDING[-len(view) % 8]) if part)
        return parts, size

    async def _send(self, parts: list[Bytes], size: int, frames: int) -> None:
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
            self._frames_sent += frames
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

        Cancelled, it has lost nothing: the next call goes on where it stopped. Raises EndOfStream
        where the peer closed between two frames, LinkError for a frame that breaks the rules or
        does not get on (FRAME_S), LinkBroken for an end inside a frame or a failing connection, and
        `trio.BusyResourceError` where another task receives.
        """
        if self._receiving:
            raise trio.BusyResourceError(f"another task receives on the link to {self.peer}")
        self._receiving = True
        try:
            await self._turns.take(0)
            if self._closed is not None:
                raise LinkBroken(self._closed)
            while (frame := self._unfinished) is None:
                await self._fetch(self._parse())
            while frame.filled < len(frame.body):
                frame.filled += await self._read(frame.body[frame.filled :], inside=True)
            self._unfinished = None
            self._patience_s = FRAME_S
            self._frames_received += 1
            return frame.message, _split(frame.body, frame.sizes)
        except LinkError as error:
            await self._close(str(error))
            raise
        finally:
            self._receiving = False

    def _parse(self) -> int:
        """Begin the frame that is ahead, as far as its buffers. Where too little of it is there,
        return the bytes that must be."""
        have = self._to - self._at
        if have < _PREFIX.size:
            return _PREFIX.size
        size: int
        written: int
        count: int
        size, written, count = _PREFIX.unpack_from(self._ahead, self._at)
        if size + _PREFIX.size > self._max_frame:
            raise LinkError(
                "oversized",
                f"{self.peer} announced a frame of {size} bytes, over the limit of "
                f"{self._max_frame}",
            )
        if written > MAX_MESSAGE or count > MAX_BUFFERS:
            raise LinkError(
                "oversized",
                f"{self.peer} announced a message of {written} bytes with {count} buffers, over "
                "the limits",
            )
        head = _HEADS[count].size
        body = size + _PREFIX.size - head - written
        if body < 0:
            raise LinkError(
                "malformed", f"{self.peer} sent a frame whose message is longer than the frame"
            )
        if have < head + written:
            return head + written
        sizes: tuple[int, ...] = (
            _HEADS[count].unpack_from(self._ahead, self._at)[3:] if count else ()
        )
        if sum(map(_padded, sizes)) != body:
            raise LinkError(
                "malformed", f"{self.peer} sent a frame whose parts do not add up to its length"
            )
        start = self._at + head
        try:
            message = _decoder.decode(self._ahead[start : start + written])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            why = (
                str(error)[:200].encode("unicode_escape").decode()
            )  # it quotes the peer, and is going to a log
            raise LinkError(
                "malformed", f"{self.peer} sent a message that does not parse: {why}"
            ) from error
        memory = (
            np.empty(body, np.uint8).data if body else _NOTHING
        )  # unlike bytearray, numpy does not touch it first
        self._patience_s += body / FRAME_RATE
        filled = min(body, have - head - written)
        self._at = start + written + filled
        if filled:
            memory[:filled] = self._ahead[start + written : self._at]
        self._bulky = body >= _BULKY
        self._unfinished = _Unfinished(message, sizes, memory, filled)
        return 0

    async def _fetch(self, size: int) -> None:
        """Have at least `size` bytes ahead."""
        while (have := self._to - self._at) < size:
            if self._at or have == len(self._ahead):
                kept = bytes(self._ahead[self._at : self._to])
                fitting = max(
                    _AHEAD, min(size, 2 * have)
                )  # a long message gets twice the room that it has filled
                if fitting != len(self._ahead):
                    self._ahead = memoryview(bytearray(fitting))
                self._ahead[:have] = kept
                self._at, self._to = 0, have
            # what is read ahead of a large body is copied once more, so little is
            room = self._ahead[have : max(size, _LITTLE_AHEAD if self._bulky else _AHEAD)]
            self._to += await self._read(room, inside=have > 0)

    async def _read(self, view: memoryview, *, inside: bool) -> int:
        """At least one byte into `view`; `inside` says whether a frame has begun. Cancelled, it has
        read nothing."""
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
        """What the pipe receives, within the frame's patience. Only waiting counts: a receiver that
        is busy itself loses no patience."""
        since, count = trio.current_time(), 0
        try:
            with trio.CancelScope(deadline=since + self._patience_s) as scope:
                count = await self._pipe.receive_into(view)
        finally:
            self._patience_s -= trio.current_time() - since
        if scope.cancelled_caught:
            raise LinkError("slow", f"{self.peer} began a frame and did not get on with it")
        return count

    async def _close(self, sentence: str) -> None:
        if self._closed is None:
            self._closed = sentence
            await self._pipe.aclose()


def _flat(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("a buffer must be C-contiguous; send a copy of the array")
    return view.cast("B") if view.nbytes else _NOTHING


def _padded(size: int) -> int:
    return size + -size % 8


def _split(body: memoryview, sizes: tuple[int, ...]) -> tuple[memoryview, ...]:
    buffers, at = [], 0
    for size in sizes:
        buffers.append(body[at : at + size])
        at += _padded(size)
    return tuple(buffers)


# ------------------------------------------------------------------------------------ making links


def memory_links() -> tuple[Link, Link]:
    """Two ends of a link in memory, without authentication and without a limit of what is under
    way. For tests."""
    from trio.testing import memory_stream_pair

    one, other = memory_stream_pair()
    return Link(StreamPipe(one), peer="the right end"), Link(StreamPipe(other), peer="the left end")


async def connect(
    address: Address, key: bytes, *, tls: Tls | None = None, max_frame: int = MAX_FRAME
) -> Link:
    """A link to the server at `address`, both ends having proved `key`. Over TCP it runs inside
    `tls`, without which only this machine can be talked to; a Unix socket needs none, and has none.
    Raises LinkError, also where nobody listens, and ValueError where TLS is missing or its files
    cannot be used."""
    credentials = _credentials(address, tls, "client")
    try:
        pipe = SocketPipe(await dial(address))
    except OSError as error:
        raise LinkError("broken", f"nobody answers at {address}: {error}") from error
    host = address.host if isinstance(address, TcpAddress) else None
    # longer than the server gives it: this connection may first have to wait for its turn
    with proving(str(address), 2 * AUTHENTICATION_S):
        return await _link(
            pipe,
            credentials,
            host,
            partial(prove_to_server, key=key),
            peer=str(address),
            max_frame=max_frame,
        )


async def serve(
    address: Address,
    key: bytes,
    handler: Callable[[Link], Awaitable[None]],
    *,
    refused: Callable[[Refusal], None],
    tls: Tls | None = None,
    max_frame: int = MAX_FRAME,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Give each connection that proves `key` to `handler`, in a task of its own, until cancelled;
    `started` gives the address it got. `tls` as for `connect`.

    The link is closed when `handler` returns. A connection that does not prove the key, or whose
    LinkError `handler` lets through, is closed and counted: `refused` is called with the reason,
    and the server goes on. An EndOfStream that `handler` lets through is no failure. Any other
    exception of `handler` ends the server. Raises OSError where the address is taken, and
    ValueError where TLS is missing or its files cannot be used.
    """
    credentials = _credentials(address, tls, "server")
    unproven: dict[trio.CancelScope, None] = {}  # the oldest first
    links = 0
    due = -math.inf  # when the next connection is accepted

    async def welcome(stream: trio.SocketStream, peer: str, scope: trio.CancelScope) -> Link:
        try:
            with scope, proving(peer, AUTHENTICATION_S):
                pipe = SocketPipe(stream)
                return await _link(
                    pipe,
                    credentials,
                    None,
                    partial(prove_to_client, key=key),
                    peer=peer,
                    max_frame=max_frame,
                )
        finally:
            unproven.pop(scope, None)
        raise LinkError(
            "crowded", f"{peer} was proving the run's key when {UNAUTHENTICATED} others came"
        )

    async def admit(stream: trio.SocketStream, peer: str, scope: trio.CancelScope) -> None:
        nonlocal links, due
        try:
            async with await welcome(stream, peer, scope) as link:
                if links >= MAX_LINKS:
                    raise LinkError(
                        "crowded",
                        f"{peer} is one more than the {MAX_LINKS} links that a server keeps",
                    )
                links += 1
                try:
                    await handler(link)
                finally:
                    links -= 1
        except* EndOfStream:
            pass
        except* LinkError as errors:
            for reason in _reasons(errors):
                refused(reason)
            due = min(
                max(due, trio.current_time()) + REFUSAL_S,
                trio.current_time() + UNAUTHENTICATED * REFUSAL_S,
            )

    async with listening(address) as (listener, bound), trio.open_nursery() as nursery:
        task_status.started(bound)
        while True:
            await trio.sleep_until(due)
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                refused("descriptors")
                due = max(due, trio.current_time() + DESCRIPTORS_S)
                continue
            if len(unproven) == UNAUTHENTICATED:
                oldest = next(iter(unproven))
                del unproven[oldest]
                oldest.cancel()
            scope = trio.CancelScope()
            unproven[scope] = None
            nursery.start_soon(admit, stream, f"a peer at {bound}", scope)


def _credentials(
    address: Address, tls: Tls | None, end: Literal["client", "server"]
) -> Credentials | None:
    """What this end shows in TLS; None where the link has none. Raises ValueError."""
    if isinstance(address, UnixAddress) or (tls is None and address.loopback):
        return None
    if tls is None:
        raise ValueError(
            f"{address} is not this machine alone, and links between machines need TLS: give "
            "certificate, key and authority"
        )
    return tls.read(end)


async def _link(
    socket: SocketPipe,
    credentials: Credentials | None,
    host: str | None,
    prove: Callable[..., Awaitable[None]],
    *,
    peer: str,
    max_frame: int,
) -> Link:
    """A link over `socket`, which it takes, once both ends have proved themselves; to be called
    inside `proving`. `host` as for `Credentials.secure`."""
    pipe: SocketPipe | TlsPipe = socket
    channel = b""
    try:
        if credentials is not None:
            pipe = secured = credentials.secure(socket, host)
            channel = await secured.shake()
        await prove(pipe, peer=peer, channel=channel)
    except BaseException:
        await pipe.aclose()
        raise
    return Link(pipe, peer=peer, max_frame=max_frame)


def _reasons(group: BaseExceptionGroup[LinkError]) -> Iterator[Refusal]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _reasons(error)
        else:
            yield error.reason
