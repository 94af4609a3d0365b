"""Processes that run users' code and can be killed, from the inside.

    actor ── control socket ──▶ nursery process ── fork ──▶ worker, worker, …
      └──────── one socket pair for each worker ────────────┘

The nursery process has imported what its workers need. From there on it only forks and buries them:
a new one costs milliseconds and shares its memory. It has no second thread, so a fork is safe. When
the actor is gone, the control socket ends, and with it every worker and all that it started.

On sockets a frame is `u32 length, msgpack`. The control socket carries `Start` and `Bury`. `Start`
comes with descriptors, of which the first is the worker's end of its socket pair, and is answered
by the worker's number as a u32. `Bury` has no answer.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from asyncrl.config.errors import ConfigError
from asyncrl.sandbox.forks import Forks

LENGTH = struct.Struct("<I")
FRAME_BYTES = 2**24
"""Bytes of the largest frame: a response of four million tokens."""
DESCRIPTORS = 2
"""Descriptors that come with `Start`, at most."""


class Start(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Fork a worker on the socket that comes as a descriptor beside this frame. A `lasting` one may
    use any seconds of a core in all: it does many pieces of work, and runs no foreign code."""

    lasting: bool


class Bury(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End the worker of this number and all that it started; until then its number cannot be
    another's."""

    number: int


T = TypeVar("T")


def frame(message: msgspec.Struct) -> bytes:
    """The message with its length in front."""
    text = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(text)) + text


def receive(sock: socket.socket, kind: type[T]) -> T | None:
    """The next frame; None if the peer ended. Raises ValueError if it is no `kind`."""
    head = _exactly(sock, LENGTH.size)
    if head is None:
        return None
    body = _exactly(sock, length(head))
    return None if body is None else decode(body, kind)


def taken(came: bytearray, most: int = FRAME_BYTES) -> bytes | None:
    """Take the body of the first frame from the bytes that came; None if it is not whole. Raises
    ValueError if it is over `most`.

    >>> came = bytearray(LENGTH.pack(1) + b"a" + LENGTH.pack(2) + b"b")
    >>> taken(came), taken(came)
    (b'a', None)
    """
    if len(came) < LENGTH.size:
        return None
    end = LENGTH.size + length(came[: LENGTH.size], most)
    if len(came) < end:
        return None
    body = bytes(came[LENGTH.size : end])
    del came[:end]
    return body


def length(head: bytes | bytearray, most: int = FRAME_BYTES) -> int:
    """The number of bytes that a frame's head announces. Raises ValueError if it is over `most`."""
    size: int = LENGTH.unpack(head)[0]
    if size > most:
        raise ValueError(f"a frame of {size} bytes is announced, over the limit of {most}")
    return size


def decode(body: bytes, kind: type[T]) -> T:
    """The message of a frame. Raises ValueError if it is no `kind`."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (RecursionError, ConfigError) as error:  # the settings of a task are checked too
        raise ValueError(str(error)) from error


def serve_control(
    control: socket.socket, forks: Forks, work: Callable[[Sequence[socket.socket]], None]
) -> None:
    """Fork and bury workers, as the actor says, until the control socket ends. Then no worker is
    left. Each does its `work` with the sockets that came for it, of which it keeps the first
    through its fork."""
    try:
        while True:
            forks.until_readable(control.fileno())
            if (command := _next(control)) is None:
                return
            match command:
                case Bury(number):
                    forks.end(number)
                case (sockets, lasting):
                    _start(control, forks, sockets, work, lasting=lasting)
    finally:
        forks.end_all()


def _start(
    control: socket.socket,
    forks: Forks,
    sockets: Sequence[socket.socket],
    work: Callable[[Sequence[socket.socket]], None],
    *,
    lasting: bool,
) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    number = forks.fork(sockets[0].fileno(), lasting=lasting)
    if number:
        for sock in sockets:
            sock.close()
        control.sendall(LENGTH.pack(number))
        return
    code = 1
    try:
        work(sockets)
        code = 0
    finally:
        os._exit(code)


def _next(control: socket.socket) -> tuple[Sequence[socket.socket], bool] | Bury | None:
    """The sockets of a worker to start and if it is a lasting one, or a worker to bury."""
    text, descriptors, flags, _ = socket.recv_fds(control, LENGTH.size, DESCRIPTORS)
    if not text:
        return None
    if flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, "no descriptor is free for a worker's socket")
    text += _exactly(control, LENGTH.size - len(text)) or b""
    body = _exactly(control, length(text))
    if body is None:
        return None
    command = msgspec.msgpack.decode(body, type=Start | Bury)
    if isinstance(command, Bury):
        return command
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for sock in sockets:
        sock.set_inheritable(False)  # what a worker starts must not hold it open
    return sockets, command.lasting


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
