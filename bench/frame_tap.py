"""A tap on the links of a run's coordinator: it stands between the coordinator's socket and those
who connect, passes whole frames on, and shows each to a listener, which may change it or cut the
link.

The coordinator binds its socket first, and the tap then takes the name. When the coordinator is
gone, the tap gives the name up, for the coordinator of the next life. Links prove the run's key
through it, as they would without it: on one machine nothing on them is secret.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Union

import msgspec
import trio

from asyncrl.messages import ALL, Hello, Message
from asyncrl.runtime.ipc import keys
from asyncrl.runtime.ipc.framing import encode_frame

LOOK_S = 0.002
"""Seconds between two looks for a coordinator's socket: fewer than an actor takes to connect."""
READ = 2**16
FROM_SERVER = len(keys._MAGIC) + keys._NONCE_BYTES + keys._PROOF_BYTES
FROM_CLIENT = keys._NONCE_BYTES + keys._PROOF_BYTES
"""Bytes of either side before its first frame."""
_HEAD = struct.Struct("<III")
_PEER = struct.Struct("<3i")  # of SO_PEERCRED: process, user, group
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Union[ALL])  # noqa: UP007


class TappedLink:
    """A link of the coordinator; `hello` is its client's first message."""

    def __init__(self) -> None:
        self.hello: Hello | None = None
        self.cut = trio.CancelScope()
        self.over = False


Heard = Callable[[TappedLink, bool, Message], Message]
"""`heard(link, up, message)` returns the message to pass on: to the coordinator (`up`), or from it.
It may cut the link by `link.cut.cancel()`."""

BEGIN_S = 10.0
"""Seconds that a coordinator has between making its socket and listening."""


async def tap(path: Path, heard: Heard) -> None:
    """Stand between the socket of each life's coordinator and its clients, until cancelled."""
    real = path.with_name(path.name + ".real")
    while True:
        while not _bound(path):  # noqa: ASYNC110  # another process makes it
            await trio.sleep(LOOK_S)
        listener = trio.SocketListener(_in_place_of(path, real))
        async with trio.open_nursery() as life:
            life.start_soon(partial(trio.serve_listeners, partial(_serve, real, heard), [listener]))
            await _ended(real)
            life.cancel_scope.cancel()
        path.unlink(missing_ok=True)  # noqa: ASYNC240  # of a coordinator that was killed


def _bound(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _in_place_of(path: Path, real: Path) -> trio.socket.SocketType:
    """A listening socket at `path`, whose own is at `real` from now on. At no moment is there
    none."""
    real.unlink(missing_ok=True)
    real.hardlink_to(path)
    mine = path.with_name(path.name + ".tap")
    mine.unlink(missing_ok=True)
    own = socket.socket(socket.AF_UNIX)
    own.bind(str(mine))
    own.listen(64)
    own.setblocking(False)
    mine.replace(path)
    return trio.socket.from_stdlib_socket(own)


async def _dialled(real: Path) -> trio.SocketStream | None:
    """A connection to the coordinator, which may be about to listen; None where it is gone."""
    with trio.move_on_after(BEGIN_S):
        while True:
            try:
                return await trio.open_unix_socket(str(real))
            except OSError:
                await trio.sleep(LOOK_S)
    return None


async def _ended(real: Path) -> None:
    """Wait until the process that listens at `real` has ended."""
    if (stream := await _dialled(real)) is None:
        return
    async with stream:
        theirs = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    try:
        descriptor = os.pidfd_open(_PEER.unpack(theirs)[0])
    except ProcessLookupError:
        return
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


async def _serve(real: Path, heard: Heard, client: trio.SocketStream) -> None:
    """Pass on what a client and the coordinator say."""
    link = TappedLink()
    if (server := await _dialled(real)) is None:
        return
    with link.cut:
        async with client, server, trio.open_nursery() as nursery:

            async def pass_on(up: bool) -> None:
                source, to = (client, server) if up else (server, client)
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await _frames(link, up, source, to, heard)
                link.cut.cancel()  # where one side ends, the other hears of it

            nursery.start_soon(pass_on, True)
            nursery.start_soon(pass_on, False)
    link.over = True


async def _frames(
    link: TappedLink,
    up: bool,
    source: trio.SocketStream,
    to: trio.SocketStream,
    heard: Heard,
) -> None:
    """Pass frames on until the source ends."""
    ahead, before = bytearray(), FROM_CLIENT if up else FROM_SERVER
    while data := await source.receive_some(READ):
        ahead += data
        if before:
            part = bytes(ahead[:before])
            del ahead[: len(part)]
            before -= len(part)
            await to.send_all(part)
        while not before and len(ahead) >= _HEAD.size:
            size = _HEAD.size + _HEAD.unpack_from(ahead)[0]
            if len(ahead) < size:
                break
            frame = bytes(ahead[:size])
            del ahead[:size]
            await to.send_all(_shown(link, up, frame, heard))


def _shown(link: TappedLink, up: bool, frame: bytes, heard: Heard) -> bytes:
    """The frame to pass on in place of this one."""
    _, written, count = _HEAD.unpack_from(frame)
    start = _HEAD.size + 4 * count
    message: Message = _decoder.decode(frame[start : start + written])
    if isinstance(message, Hello):
        link.hello = message
    passed = heard(link, up, message)
    if passed is message:
        return frame
    assert not count, "a message with buffers is passed on as it is"
    parts, _ = encode_frame(passed, (), 2**26)
    return b"".join(bytes(part) for part in parts)
