"""Bytes to and from a peer, below the frames of a link. Invariant: a pipe knows whether its last
send stopped halfway.

Sockets are driven directly: the system call first, trio only if it would block. That makes a
small frame cheap, and lets the kernel alone copy a large one. Any other trio stream works too, for
tests.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Sequence
from typing import Protocol

import trio

Bytes = bytes | bytearray | memoryview
FAILURES = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""Exceptions of a pipe's methods if the connection fails, or was closed here."""

_MIB = 2**20


class Pipe(Protocol):
    """Bytes both ways. Its methods raise `FAILURES`."""

    @property
    def torn(self) -> bool:
        """The last send stopped, or failed, after its first byte and before its last."""
        ...

    @property
    def blocked_s(self) -> float:
        """Seconds sends waited for the peer."""
        ...

    async def send(self, parts: Sequence[Bytes]) -> None:
        """Send all the parts (none empty), in order."""
        ...

    async def receive_into(self, view: memoryview) -> int:
        """Receive at least one byte and at most as many as fit; 0 at the end of the stream.
        A cancelled call has received nothing."""
        ...

    async def aclose(self) -> None:
        """Close at once; a task that waits in the pipe gets `trio.ClosedResourceError`."""
        ...


class SocketPipe:
    """A pipe over the socket of `stream`, which it takes over."""

    def __init__(self, stream: trio.SocketStream) -> None:
        family, kind = stream.socket.family, stream.socket.type
        self._sock = socket.socket(family, kind, fileno=stream.socket.detach())
        self._sock.setblocking(False)
        self.torn = False
        self.blocked_s = 0.0

    async def send(self, parts: Sequence[Bytes]) -> None:
        size = left = sum(map(len, parts))
        # set here, so that it holds after an interrupt between the system call and its count
        self.torn = True
        while True:
            try:
                sent = self._sock.send(parts[0]) if len(parts) == 1 else self._sock.sendmsg(parts)
            except BlockingIOError:
                sent = 0
            left -= sent
            if not left:
                self.torn = False
                return
            self.torn = left < size
            parts = _after(parts, sent)
            await self._wait_writable()

    async def writable(self) -> None:
        """Return once the socket takes bytes, at once if it does."""
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        if not poll.poll(0):
            await self._wait_writable()

    def send_now(self, data: bytes) -> None:
        """Send what the socket takes without waiting: last words, before it is closed."""
        with contextlib.suppress(OSError):
            self._sock.send(data)

    async def receive_into(self, view: memoryview) -> int:
        while True:
            try:
                return self._sock.recv_into(view)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)

    async def aclose(self) -> None:
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    async def _wait_writable(self) -> None:
        since = trio.current_time()
        try:
            await trio.lowlevel.wait_writable(self._sock)
        finally:
            self.blocked_s += trio.current_time() - since


class StreamPipe:
    """A pipe over any trio stream, which it owns."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.torn = False
        self.blocked_s = 0.0

    async def send(self, parts: Sequence[Bytes]) -> None:
        since = trio.current_time()
        self.torn = True  # a stream does not say how much of a cancelled send went out
        try:
            await self._stream.send_all(b"".join(parts))
            self.torn = False
        finally:
            self.blocked_s += trio.current_time() - since

    async def receive_into(self, view: memoryview) -> int:
        data = await self._stream.receive_some(len(view))
        view[: len(data)] = data
        return len(data)

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):  # it does not block: its own scope is cancelled
            await trio.aclose_forcefully(self._stream)


class Turns:
    """Lets other tasks run once every mebibyte or 64 operations, and sees a cancellation at each: a
    switch of tasks costs more than a small frame does."""

    def __init__(self) -> None:
        self._left = _MIB

    async def take(self, size: int) -> None:
        """A checkpoint before an operation on at most `size` bytes."""
        self._left -= size + _MIB // 64
        if self._left > 0:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._left = _MIB
            await trio.lowlevel.checkpoint()


def _after(parts: Sequence[Bytes], sent: int) -> Sequence[Bytes]:
    """The rest of `parts` after their first `sent` bytes."""
    if not sent:
        return parts
    for index, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[index + 1 :]]
        sent -= len(part)
    return []
