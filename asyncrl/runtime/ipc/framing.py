"""Frames: one message and its buffers as bytes, and back. Invariant: limits are checked before
anything is allocated, and nothing but `messages.ALL` is ever built from what arrives.

    bytes       u32   number of bytes behind `count`, up to the end of the frame
    written     u32   bytes of the message
    count       u32   number of buffers
    sizes       u32   bytes of each buffer, `count` times
    message           msgpack
    buffers           each padded with zeros to a multiple of 8 bytes

Integers are little-endian. A message of 3 bytes with one buffer of 10 bytes is a frame of
4 + 4 + 4 + 4 + 3 + 16 = 35 bytes, of which `bytes` says 23.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Union

import msgspec
import numpy as np

from asyncrl.escape import escaped
from asyncrl.messages import ALL, Message
from asyncrl.runtime.ipc.errors import LinkError
from asyncrl.runtime.ipc.pipes import Bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_FRAME = 256 * 2**20
MAX_MESSAGE = 4 * 2**20
"""Bytes of a message without its buffers: decoded, they can take thirty times the memory."""
MAX_BUFFERS = 8
BULKY = 2**14
"""Bytes of buffers from which on they are not joined with the head to be sent, and little is read
ahead of them."""

_PREFIX = struct.Struct("<III")
_HEADS = [struct.Struct(f"<{3 + count}I") for count in range(MAX_BUFFERS + 1)]
_PADDING = [bytes(size) for size in range(8)]
_NOTHING = memoryview(bytearray())
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Union[ALL])  # noqa: UP007
_encoder = msgspec.msgpack.Encoder()


class ArrivingFrame(msgspec.Struct, eq=False):
    """A frame whose message is read, and whose `body` (its buffers, with padding) is filled up to
    `filled`. `end` is the position behind the bytes that were taken of those ahead."""

    message: Message
    sizes: tuple[int, ...]
    body: memoryview
    filled: int
    end: int

    def buffers(self) -> tuple[memoryview, ...]:
        """The buffers, without padding: parts of `body`."""
        views, at = [], 0
        for size in self.sizes:
            views.append(self.body[at : at + size])
            at += _padded(size)
        return tuple(views)


def encode_frame(
    message: Message, buffers: tuple[Buffer, ...], max_frame: int
) -> tuple[list[Bytes], int]:
    """The frame in non-empty parts, and its bytes. Raises ValueError for a frame over the limits,
    or a buffer that is not C-contiguous."""
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
    if size > max_frame:
        raise ValueError(
            f"{type(message).__name__} is a frame of {size} bytes, and a link takes at most "
            f"{max_frame}; split it"
        )
    if written > MAX_MESSAGE:
        raise ValueError(
            f"{type(message).__name__} is {written} bytes without its buffers, over the "
            f"{MAX_MESSAGE} of a link; split it"
        )
    head.pack_into(first, 0, size - _PREFIX.size, written, len(views), *sizes)
    if body < BULKY:
        for view in views:
            first += view
            first += _PADDING[-len(view) % 8]
        return [first], size
    parts: list[Bytes] = [first]
    for view in views:
        parts += (part for part in (view, _PADDING[-len(view) % 8]) if part)
    return parts, size


def begin_frame(
    ahead: memoryview, at: int, to: int, *, max_frame: int, peer: str
) -> ArrivingFrame | int:
    """The frame that begins at `ahead[at]`, as far as the bytes up to `to` have it; if its message
    is not complete, the number of bytes that it needs. Raises LinkError."""
    have = to - at
    if have < _PREFIX.size:
        return _PREFIX.size
    size: int
    written: int
    count: int
    size, written, count = _PREFIX.unpack_from(ahead, at)
    if size + _PREFIX.size > max_frame:
        raise LinkError(
            "oversized",
            f"{peer} announced a frame of {size} bytes, over the limit of {max_frame}",
        )
    if written > MAX_MESSAGE or count > MAX_BUFFERS:
        raise LinkError(
            "oversized",
            f"{peer} announced a message of {written} bytes with {count} buffers, over the limits",
        )
    head = _HEADS[count].size
    body = size + _PREFIX.size - head - written
    if body < 0:
        raise LinkError("malformed", f"{peer} sent a frame whose message is longer than the frame")
    if have < head + written:
        return head + written
    sizes: tuple[int, ...] = _HEADS[count].unpack_from(ahead, at)[3:] if count else ()
    if sum(map(_padded, sizes)) != body:
        raise LinkError("malformed", f"{peer} sent a frame whose parts do not add up to its length")
    start = at + head
    message = _message(ahead[start : start + written], peer)
    # unlike bytearray, numpy does not touch the memory first
    memory = np.empty(body, np.uint8).data if body else _NOTHING
    filled = min(body, have - head - written)
    end = start + written + filled
    if filled:
        memory[:filled] = ahead[start + written : end]
    return ArrivingFrame(message, sizes, memory, filled, end)


def _message(data: memoryview, peer: str) -> Message:
    try:
        message: Message = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # it quotes the peer
        why = escaped(str(error), 200)
        raise LinkError("malformed", f"{peer} sent a message that does not parse: {why}") from error
    return message


def _flat(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("a buffer must be C-contiguous; send a copy of the array")
    return view.cast("B") if view.nbytes else _NOTHING


def _padded(size: int) -> int:
    return size + -size % 8
