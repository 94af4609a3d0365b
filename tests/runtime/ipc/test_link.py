from __future__ import annotations

import errno
import functools
import os
import random
import socket
import stat
import struct
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from memory_link import memory_links
from message_strategies import of_type
from some_values import drawn, some

from asyncrl import messages
from asyncrl.messages.address import TcpAddress, UnixAddress, parse_address
from asyncrl.runtime.ipc.endpoints import DESCRIPTORS_S, REFUSAL_S, UNAUTHENTICATED, connect, serve
from asyncrl.runtime.ipc.errors import EndOfStream, LinkBroken, LinkError
from asyncrl.runtime.ipc.framing import MAX_MESSAGE
from asyncrl.runtime.ipc.keys import new_key, read_key, write_key
from asyncrl.runtime.ipc.link import FRAME_S, Link
from asyncrl.runtime.ipc.pipes import SocketPipe, StreamPipe
from asyncrl.runtime.ipc.waits import Pulse

KEY = b"k" * 32


a_message = st.sampled_from(messages.ALL).flatmap(of_type)
some_buffers = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.binary(max_size=40).map(bytearray),
        st.builds(lambda n: np.arange(n, dtype=np.int32), st.integers(0, 9)),
        st.builds(lambda n: np.arange(2 * n, dtype=np.float32).reshape(2, n), st.integers(0, 9000)),
        st.builds(lambda n: np.ones(n, dtype=np.uint8), st.integers(0, 70_000)),
    ),
    max_size=8,
)


def raw(buffer: object) -> bytes:
    return buffer.tobytes() if isinstance(buffer, np.ndarray) else bytes(buffer)


def socket_links(max_frame: int = 2**28) -> tuple[Link, Link]:
    """A link over a pair of sockets, which have a limit of what is under way."""
    ends = [trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair()]
    one, other = (Link(SocketPipe(end), peer="the peer", max_frame=max_frame) for end in ends)
    return one, other


class Trickle(trio.abc.Stream):
    """Delivers one byte at a time."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self.stream.receive_some(1)

    async def send_all(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.stream.aclose()


def raw_end(max_frame: int = 2**20) -> tuple[trio.abc.Stream, Link]:
    """A stream to write anything into, and the link that reads it."""
    mine, theirs = trio.testing.memory_stream_pair()
    return mine, Link(StreamPipe(theirs), peer="the peer", max_frame=max_frame)


async def frame_of(message: messages.Message, *buffers: object) -> bytes:
    one, other = trio.testing.memory_stream_pair()
    await Link(StreamPipe(one), peer="").send(message, *buffers)
    return bytes(await other.receive_some())


# ------------------------------------------------------------------------------------------ frames


@settings(max_examples=drawn(300), deadline=None)
@given(st.lists(st.tuples(a_message, some_buffers), min_size=1, max_size=4), st.booleans())
def test_what_is_sent_is_what_is_received(frames, sockets):
    async def main() -> None:
        one, other = socket_links() if sockets else memory_links()

        async def send() -> None:
            async with one:
                for message, buffers in frames:
                    await one.send(message, *buffers)

        async with other, trio.open_nursery() as nursery:
            nursery.start_soon(send)
            for message, buffers in frames:
                received, views = await other.receive()
                assert received == message and type(received) is type(message)
                assert [bytes(view) for view in views] == [raw(buffer) for buffer in buffers]
                for view in views:
                    assert not view.readonly
                    assert not len(view) or np.frombuffer(view, np.uint8).ctypes.data % 8 == 0
            with pytest.raises(EndOfStream):
                await other.receive()
        assert one.statistics().bytes_sent == other.statistics().bytes_received
        assert one.statistics().frames_sent == other.statistics().frames_received == len(frames)

    trio.run(main)


@pytest.mark.parametrize("kind", some(messages.ALL), ids=lambda kind: kind.__name__)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_message_byte_by_byte(kind, data):
    message = data.draw(of_type(kind))
    buffers = data.draw(st.lists(st.binary(max_size=30), max_size=8))

    async def main() -> None:
        one, other = trio.testing.memory_stream_pair()
        sender, receiver = Link(StreamPipe(one), peer=""), Link(StreamPipe(Trickle(other)), peer="")
        for _ in range(2):
            await sender.send(message, *buffers)
            received, views = await receiver.receive()
            assert received == message
            assert [bytes(view) for view in views] == buffers

    trio.run(main)


async def test_received_buffers_belong_to_the_receiver():
    one, other = memory_links()
    await one.send(messages.Drain(), b"first...")
    await one.send(messages.Drain(), b"second..")
    (_, (first,)), (_, (second,)) = await other.receive(), await other.receive()
    first[:] = b"changed."
    await one.send(messages.Drain(), b"third...")
    await other.receive()
    assert (bytes(first), bytes(second)) == (b"changed.", b"second..")


async def test_messages_sent_before_the_end_arrive():
    one, other = memory_links()
    batch = [messages.CloseStep(step) for step in range(100)]
    for message in batch:
        await one.send(message)
    await one.aclose()
    assert [message async for message, buffers in other] == batch
    assert one.statistics().frames_sent == 100


async def test_a_large_message_without_buffers():
    one, other = socket_links()
    message = messages.Saved(1, "x" * 3_000_000)

    async def send() -> None:
        await one.send(message)
        await one.send(messages.Drain(), bytes(100_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        assert (await other.receive())[0] == message
        received, (buffer,) = await other.receive()
        assert received == messages.Drain() and bytes(buffer) == bytes(100_000)


async def test_what_cannot_be_sent_says_so_and_leaves_the_link_alone():
    one, other = memory_links()
    small = Link(StreamPipe(trio.testing.memory_stream_pair()[0]), peer="x", max_frame=1000)
    with pytest.raises(
        ValueError, match=r"Drain is a frame of .* bytes, and a link takes at most 1000"
    ):
        await small.send(messages.Drain(), bytes(1000))
    with pytest.raises(ValueError, match="9 buffers"):
        await one.send(messages.Drain(), *[b""] * 9)
    with pytest.raises(ValueError, match="C-contiguous"):
        await one.send(messages.Drain(), np.zeros((4, 4))[:, 1])
    with pytest.raises(ValueError, match="without its buffers"):
        await one.send(messages.Saved(1, "x" * (MAX_MESSAGE + 1)))
    await one.send(messages.Drain(), b"still here")
    assert bytes((await other.receive())[1][0]) == b"still here"


# -------------------------------------------------------------------------------------- bad frames


async def drain(link: Link) -> list[messages.Message]:
    return [message async for message, _ in link]


@settings(max_examples=drawn(400), deadline=None)
@given(st.binary(max_size=200))
@example(struct.pack("<III", 2**32 - 1, 0, 0))
@example(struct.pack("<III", 100, 2**32 - 1, 0))
@example(struct.pack("<III", 100, 0, 2**32 - 1))
@example(struct.pack("<IIII", 12, 0, 1, 2**32 - 1) + bytes(8))
@example(struct.pack("<III", 3, 3, 0) + b"\x91\xa1\xff")
def test_arbitrary_bytes_are_a_link_error_or_an_end(data):
    async def main() -> None:
        stream, link = raw_end()
        await stream.send_all(data)
        await stream.aclose()
        if not data:
            assert await drain(link) == []
            return
        with pytest.raises(LinkError):
            await drain(link)
        with pytest.raises(LinkBroken):
            await link.receive()

    trio.run(main)


@settings(max_examples=drawn(400), deadline=None)
@given(data=st.data())
def test_a_damaged_frame_is_a_link_error_or_another_message(data):
    """Any byte of a good frame changed, or its message replaced: what comes out is a message or
    LinkError, nothing else."""

    async def main() -> None:
        frame = bytearray(
            await frame_of(
                data.draw(a_message), *data.draw(st.lists(st.binary(max_size=9), max_size=3))
            )
        )
        if data.draw(st.booleans()):
            text = data.draw(st.binary(max_size=40))
            frame = bytearray(struct.pack("<III", len(text), len(text), 0) + text)
        else:
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        stream, link = raw_end()
        await stream.send_all(frame)
        await stream.aclose()
        try:
            received = await drain(link)
        except LinkError as error:
            assert error.reason in ("malformed", "oversized", "broken")
        else:
            assert all(isinstance(message, messages.Message) for message in received)

    trio.run(main)


@pytest.mark.parametrize(
    ("head", "reason", "sentence"),
    [
        (struct.pack("<III", 2**20, 4, 0), "oversized", "over the limit"),
        (struct.pack("<III", 100, MAX_MESSAGE + 1, 0), "oversized", "over the limits"),
        (struct.pack("<III", 100, 4, 9), "oversized", "9 buffers"),
        (struct.pack("<III", 4, 5, 0), "malformed", "longer than the frame"),
        (struct.pack("<IIII", 16, 0, 1, 4), "malformed", "do not add up"),
        (struct.pack("<III", 1, 1, 0) + b"\xc1", "malformed", "does not parse"),
        (struct.pack("<III", 8, 8, 0) + b"\x91\xa6secret", "malformed", "does not parse"),
        (struct.pack("<III", 100, 4, 0) + b"\x91", "broken", "middle of a frame"),
    ],
)
async def test_a_bad_frame_is_named_before_the_rest_of_it_is_read(head, reason, sentence):
    stream, link = raw_end()
    await stream.send_all(head)
    if reason == "broken":
        await stream.aclose()
    with pytest.raises(LinkError, match=sentence) as caught:
        await link.receive()
    assert caught.value.reason == reason
    with pytest.raises(LinkBroken):
        await link.send(messages.Drain())
    if reason != "broken":
        assert await stream.receive_some() == b"", "the link is closed"


@pytest.mark.parametrize(
    "begun",
    [
        b"\x01",
        struct.pack("<II", 100, 4),
        struct.pack("<III", 100, 50, 0) + b"\x91",
        struct.pack("<IIII", 11 + 2**19, 7, 1, 2**19) + b"\x91\xa5Drain",
        struct.pack("<IIII", 11 + 2**19, 7, 1, 2**19) + b"\x91\xa5Drain" + bytes(2**18),
    ],
    ids=["a byte", "half a head", "half a message", "no buffer", "half a buffer"],
)
async def test_a_frame_that_does_not_get_on_closes_the_link(begun, autojump_clock):
    stream, link = raw_end()
    await stream.send_all(begun)
    since = trio.current_time()
    with pytest.raises(LinkError, match="did not finish it in time") as caught:
        await link.receive()
    assert caught.value.reason == "slow"
    assert FRAME_S <= trio.current_time() - since <= FRAME_S + 1
    assert await stream.receive_some() == b"", "the link is closed"


async def test_a_trickle_is_slow_however_steady(autojump_clock):
    """A byte every second keeps a frame of half a megabyte alive for FRAME_S and the half second
    more that its size is worth."""
    stream, link = raw_end()
    frame = await frame_of(messages.Drain(), bytes(2**19))
    since = trio.current_time()

    async def trickle() -> None:
        for byte in frame:
            await stream.send_all(bytes([byte]))
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trickle)
        with pytest.raises(LinkError) as caught:
            await link.receive()
        nursery.cancel_scope.cancel()
    assert caught.value.reason == "slow"
    assert FRAME_S <= trio.current_time() - since <= FRAME_S + 1


async def test_patience_is_for_waiting_only(autojump_clock):
    """A receiver that is busy, or cancelled again and again, loses no patience with a peer that
    sent its part; between frames nobody is hurried, and each frame has patience of its own."""
    stream, link = raw_end()
    frame = await frame_of(messages.Drain(), bytes(10_000))
    for _ in range(3):
        await trio.sleep(10 * FRAME_S)
        await stream.send_all(frame[:5_000])
        with trio.move_on_after(FRAME_S - 1):
            await link.receive()
        await trio.sleep(10 * FRAME_S)
        await stream.send_all(frame[5_000:])
        assert (await link.receive())[0] == messages.Drain()


def resident() -> int:
    """Bytes of this process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<IIII", 11 + 2**28 - 32, 7, 1, 2**28 - 32) + b"\x91\xa5Drain",
        struct.pack("<III", 2**23, MAX_MESSAGE, 1),
    ],
    ids=["buffers", "message"],
)
async def test_an_announced_frame_is_address_space_and_not_memory(head):
    links = []
    before = resident()
    for _ in range(20):
        mine, theirs = trio.testing.memory_stream_pair()
        link = Link(StreamPipe(theirs), peer="the peer")
        await mine.send_all(head)
        with trio.move_on_after(0.001):
            await link.receive()
        links.append((mine, link))
    grown = resident() - before
    assert grown < 20 * 2**20, (
        f"{len(links)} peers that announced and sent nothing took {grown >> 20} MiB"
    )


async def test_a_large_message_leaves_no_large_buffer_behind():
    one, other = socket_links()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.send, messages.Saved(1, "x" * 3_000_000))
        await other.receive()
    await one.send(messages.Drain())
    await other.receive()
    assert len(other._ahead) == 2**16


# ----------------------------------------------------------------------- cancellation, concurrency


async def test_a_send_cancelled_inside_a_frame_closes_the_link(autojump_clock):
    one, other = socket_links()
    with trio.move_on_after(1) as scope:
        await one.send(messages.Drain(), bytes(2**23))
    assert scope.cancelled_caught
    with pytest.raises(LinkBroken, match="cancelled in the middle of a frame"):
        await one.send(messages.Drain())
    with pytest.raises(LinkBroken, match="cancelled in the middle of a frame"):
        await one.receive()
    with pytest.raises(LinkBroken, match="ended in the middle of a frame"):
        await other.receive()


async def test_a_send_cancelled_before_its_first_byte_is_nothing(autojump_clock):
    one, other = socket_links()
    sent = 0
    with trio.move_on_after(1):
        while True:  # frames so small that the full socket takes none of one
            await one.send(messages.CloseStep(sent))
            sent += 1
    with trio.CancelScope() as scope:
        scope.cancel()
        await one.send(messages.CloseStep(-1))
    for step in range(sent):
        assert (await other.receive())[0] == messages.CloseStep(step)
    await one.send(messages.CloseStep(-2))
    assert (await other.receive())[0] == messages.CloseStep(-2)


async def test_a_cancelled_queue_place_is_nothing(autojump_clock):
    one, other = socket_links()

    async def impatient() -> None:
        with trio.move_on_after(1):
            await one.send(messages.CloseStep(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.send, messages.CloseStep(0), bytes(2**23))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(impatient)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(one.send, messages.CloseStep(2))
        await trio.sleep(2)
        assert [(await other.receive())[0].step for _ in range(2)] == [0, 2]
    assert one.statistics().blocked_s >= 3


@settings(max_examples=drawn(40), deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=12), st.integers(0, 100_000))
def test_a_cancelled_receive_loses_nothing(cuts, size):
    async def main() -> None:
        frame = await frame_of(messages.CloseStep(5), os.urandom(size))
        stream, link = raw_end()
        at = 0
        for cut in (*cuts, len(frame) - sum(cuts)):
            await stream.send_all(frame[at : at + max(0, cut)])
            at += max(0, cut)
            if at >= len(frame):
                break
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(link.receive)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            with trio.CancelScope() as scope:
                scope.cancel()
                await link.receive()
        await stream.send_all(frame[at:])
        message, (buffer,) = await link.receive()
        assert message == messages.CloseStep(5)
        assert await frame_of(message, buffer) == frame

    trio.run(main)


async def test_frames_of_many_senders_do_not_mix():
    one, other = socket_links()
    sizes = [10, 5_000, 30_000, 700_000]
    seen: Counter[int] = Counter()

    async def send(step: int) -> None:
        for _ in range(5):
            await one.send(messages.CloseStep(step), np.full(sizes[step], step, np.uint8))
            for _ in range(3):
                await one.send(messages.CloseStep(100 + step))

    async with trio.open_nursery() as nursery:
        for step in range(4):
            nursery.start_soon(send, step)
        for _ in range(4 * 5 * 4):
            message, buffers = await other.receive()
            seen[message.step] += 1
            if message.step < 100:
                assert np.array_equal(
                    buffers[0], np.full(sizes[message.step], message.step, np.uint8)
                )
    assert seen == {**dict.fromkeys(range(4), 5), **dict.fromkeys(range(100, 104), 15)}


async def test_one_task_receives():
    _one, other = memory_links()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.receive)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await other.receive()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("make", [memory_links, socket_links])
async def test_closing_wakes_those_who_wait(make):
    one, _other = make()
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(LinkBroken, match="closed here"):
                await one.receive()

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await one.aclose()
    with pytest.raises(LinkBroken, match="closed here"):
        await one.send(messages.Drain())


async def test_last_words_are_heard_although_sending_fails():
    one, other = socket_links()
    for message in (messages.Drain(), messages.Drained()):
        await other.send(message)
    await other.aclose()
    with pytest.raises(LinkBroken, match="broke"):
        for _ in range(3):
            await one.send(messages.Drain())
    assert await drain(one) == [messages.Drain(), messages.Drained()]


async def test_other_tasks_get_their_turn():
    one, other = memory_links()
    for _ in range(1000):
        await one.send(messages.Drain())
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for _ in range(1000):
            await other.receive()
        nursery.cancel_scope.cancel()
    assert turns >= 10


# --------------------------------------------------------------------------------- keys, addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/a b:c", UnixAddress(Path("/run/a b:c"))),
        ("tcp:127.0.0.1:80", TcpAddress("127.0.0.1", 80)),
        ("tcp:[::1]:0", TcpAddress("::1", 0)),
    ],
)
def test_an_address_parses_and_prints(text, address):
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unix:",
        "unix:relative",
        "tcp:80",
        "tcp::80",
        "tcp:host:",
        "tcp:host:x",
        "tcp:host:65536",
        "udp:h:1",
    ],
)
def test_what_is_no_address_says_so(text):
    with pytest.raises(ValueError, match="unix:/path"):
        parse_address(text)


def test_the_key_is_for_its_owner(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    key = new_key()
    write_key(path, key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key(path) == key != new_key()
    path.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        read_key(path)
    path.chmod(0o600)
    path.write_bytes(key[:-1])
    with pytest.raises(ValueError, match="32 bytes"):
        read_key(path)


# ----------------------------------------------------------------------------------------- servers


async def echo(link: Link) -> None:
    async for message, buffers in link:
        await link.send(message, *buffers)


def addresses(directory: Path) -> list[UnixAddress | TcpAddress]:
    return [UnixAddress(directory / "socket"), TcpAddress("127.0.0.1", 0)]


@pytest.fixture(params=["unix", "tcp"])
def address(request, tmp_path):
    return addresses(tmp_path)[request.param == "tcp"]


class Refusals(Counter[str]):
    """Refusals of a server, and a way to wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.pulse = Pulse()

    def refused(self, reason: str) -> None:
        self[reason] += 1
        self.pulse.set()

    async def reach(self, total: int) -> None:
        with trio.fail_after(60):
            while self.total() < total:
                await self.pulse.wait()


Serving = Callable[..., Awaitable[UnixAddress | TcpAddress]]


@pytest.fixture
async def serving(nursery, address) -> tuple[Serving, Refusals]:
    refusals = Refusals()

    async def start(handler=echo, **options):
        return await nursery.start(
            functools.partial(serve, address, KEY, handler, refused=refusals.refused, **options)
        )

    return start, refusals


async def dial(bound: UnixAddress | TcpAddress) -> trio.SocketStream:
    if isinstance(bound, TcpAddress):
        return await trio.open_tcp_stream(bound.host, bound.port)
    return await trio.open_unix_socket(str(bound.path))


async def test_messages_go_both_ways(serving):
    start, refusals = serving
    bound = await start()
    async with await connect(bound, KEY) as one, await connect(bound, KEY) as other:
        for link in (one, other, one):
            data = os.urandom(300_000)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.send, messages.CloseStep(3), data)
                message, (buffer,) = await link.receive()
            assert message == messages.CloseStep(3) and bytes(buffer) == data
    assert not refusals


async def test_a_peer_with_another_key_is_refused_and_the_server_goes_on(serving):
    start, refusals = serving
    bound = await start()
    with pytest.raises(LinkError, match="another run's key") as caught:
        await connect(bound, new_key())
    assert caught.value.reason == "key"
    await refusals.reach(1)
    async with await connect(bound, KEY) as link:
        await link.send(messages.Drain())
        assert (await link.receive())[0] == messages.Drain()
    assert refusals == {"key": 1}


async def test_a_server_without_the_key_is_refused(nursery, tmp_path):
    bound = await nursery.start(
        functools.partial(
            serve, UnixAddress(tmp_path / "s"), new_key(), echo, refused=lambda reason: None
        )
    )
    with pytest.raises(LinkError, match="key"):
        await connect(bound, KEY)


async def test_a_server_that_only_repeats_is_refused(tmp_path, nursery):
    """It sends the client's own proof back as its own."""

    async def mirror(stream: trio.SocketStream) -> None:
        await stream.send_all(b"asyncrl\x01" + bytes(32))
        answer = b""
        while len(answer) < 64:
            answer += await stream.receive_some()
        await stream.send_all(answer[32:])

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, mirror, listeners)
    with pytest.raises(LinkError, match="does not have this run's key"):
        await connect(TcpAddress("127.0.0.1", listeners[0].socket.getsockname()[1]), KEY)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        random.Random(0).randbytes(64),
        random.Random(1).randbytes(1000),
    ],
)
async def test_nothing_is_decoded_without_the_key(serving, data):
    handled = []

    async def handler(link: Link) -> None:
        handled.append(link)

    start, refusals = serving
    bound = await start(handler)
    stream = await dial(bound)
    with trio.fail_after(60):
        await stream.send_all(data + await frame_of(messages.Drain()))
        if len(data) < 40:
            await stream.send_eof()
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
    await refusals.reach(1)
    assert set(refusals) <= {"key", "broken"} and not handled


async def test_a_silent_peer_is_refused_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr("asyncrl.runtime.ipc.endpoints.AUTHENTICATION_S", 0.05)
    refusals = Refusals()
    async with trio.open_nursery() as nursery:
        serving = functools.partial(
            serve, UnixAddress(tmp_path / "s"), KEY, echo, refused=refusals.refused
        )
        bound = await nursery.start(serving)
        silent = [await dial(bound) for _ in range(UNAUTHENTICATED // 2)]
        await refusals.reach(len(silent))
        assert refusals == {"silent": len(silent)}
        nursery.cancel_scope.cancel()
    for stream in silent:
        await stream.aclose()


async def test_silent_peers_do_not_keep_out_one_who_has_the_key(serving, monkeypatch):
    """Nor does one who waits for them to time out."""
    monkeypatch.setattr("asyncrl.runtime.ipc.endpoints.AUTHENTICATION_S", 600.0)
    start, refusals = serving
    bound = await start()
    with trio.fail_after(60):
        silent = [await dial(bound) for _ in range(2 * UNAUTHENTICATED)]
        async with await connect(bound, KEY) as link:
            await link.send(messages.Drain())
            assert (await link.receive())[0] == messages.Drain()
        await refusals.reach(UNAUTHENTICATED)
        assert set(refusals) == {"crowded"}
    for stream in silent:
        await stream.aclose()


async def test_links_are_counted(tmp_path, nursery, monkeypatch):
    monkeypatch.setattr("asyncrl.runtime.ipc.endpoints.MAX_LINKS", 2)
    refusals = Refusals()
    bound = await nursery.start(
        functools.partial(serve, UnixAddress(tmp_path / "s"), KEY, echo, refused=refusals.refused)
    )
    one, _other = await connect(bound, KEY), await connect(bound, KEY)
    with pytest.raises((LinkBroken, EndOfStream)):
        await (await connect(bound, KEY)).receive()
    await refusals.reach(1)
    assert refusals == {"crowded": 1}
    await one.aclose()
    await trio.testing.wait_all_tasks_blocked(0.01)
    async with await connect(bound, KEY) as link:
        await link.send(messages.Drain())
        assert (await link.receive())[0] == messages.Drain()


async def test_refusals_put_off_the_next_connection(tmp_path, nursery):
    """A hundred refusals take their time, however fast the hundred come; who is in notices
    nothing."""
    refusals = Refusals()
    bound = await nursery.start(
        functools.partial(serve, UnixAddress(tmp_path / "s"), KEY, echo, refused=refusals.refused)
    )
    async with await connect(bound, KEY) as link:
        since = trio.current_time()
        for _ in range(100):
            stream = await dial(bound)
            await stream.send_all(bytes(64))
            await stream.aclose()
        await link.send(messages.Drain())
        assert (await link.receive())[0] == messages.Drain()
        assert refusals.total() < 90, "who is in does not wait for those who are not"
        await refusals.reach(100)
        assert trio.current_time() - since > 90 * REFUSAL_S


async def test_a_server_without_descriptors_tries_again_and_lets_in_who_waited(
    tmp_path, nursery, monkeypatch
):
    refusals, tried, accept = Refusals(), [], trio.SocketListener.accept

    async def scarce(listener: trio.SocketListener) -> trio.SocketStream:
        tried.append(trio.current_time())
        if len(tried) <= 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return await accept(listener)

    monkeypatch.setattr(trio.SocketListener, "accept", scarce)
    bound = await nursery.start(
        functools.partial(serve, UnixAddress(tmp_path / "s"), KEY, echo, refused=refusals.refused)
    )
    with trio.fail_after(60):
        async with await connect(bound, KEY) as link:
            await link.send(messages.Drain())
            assert (await link.receive())[0] == messages.Drain()
    assert refusals == {"descriptors": 2}
    assert all(b - a >= DESCRIPTORS_S for a, b in pairwise(tried[:3]))


async def test_a_silent_server_is_refused_in_time(tmp_path, monkeypatch, nursery):
    monkeypatch.setattr("asyncrl.runtime.ipc.endpoints.AUTHENTICATION_S", 0.02)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listeners[0] as listener:
        with pytest.raises(LinkError, match="within") as caught:
            await connect(TcpAddress("127.0.0.1", listener.socket.getsockname()[1]), KEY)
    assert caught.value.reason == "silent"


@pytest.mark.parametrize("nested", [False, True])
async def test_bad_frames_close_their_connection_only(serving, nested):
    async def in_a_nursery(link: Link) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(echo, link)

    start, refusals = serving
    bound = await start(in_a_nursery if nested else echo, max_frame=10_000)
    good = await connect(bound, KEY)
    big = await connect(bound, KEY)
    await big.send(messages.Drain(), bytes(20_000))
    await refusals.reach(1)
    bad = await connect(bound, KEY)
    await bad._pipe.send([struct.pack("<III", 1, 1, 0) + b"\xc1"])
    await refusals.reach(2)
    torn = await connect(bound, KEY)
    await torn._pipe.send([struct.pack("<III", 10, 10, 0) + b"\x91"])
    await torn.aclose()
    await refusals.reach(3)
    assert refusals == {"oversized": 1, "malformed": 1, "broken": 1}
    await good.send(messages.Drain())
    assert (await good.receive())[0] == messages.Drain()


async def test_a_handler_that_fails_ends_the_server(tmp_path):
    async def handler(link: Link) -> None:
        raise KeyError("a mistake")

    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(
                functools.partial(serve, UnixAddress(tmp_path / "s"), KEY, handler, refused=print)
            )
            await connect(bound, KEY)
            await trio.sleep_forever()
    assert caught.value.split(KeyError)[1] is None


async def test_an_end_of_stream_is_no_refusal(serving):
    ended = trio.Event()

    async def handler(link: Link) -> None:
        try:
            while True:
                await link.receive()
        finally:
            ended.set()

    start, refusals = serving
    bound = await start(handler)
    await (await connect(bound, KEY)).aclose()
    with trio.fail_after(60):
        await ended.wait()
    assert not refusals


# ------------------------------------------------------------------------------------ socket files


async def test_nobody_there(tmp_path):
    with pytest.raises(LinkError, match="no server answers at unix:"):
        await connect(UnixAddress(tmp_path / "nobody"), KEY)


async def test_a_socket_file_is_private_and_leaves_with_its_server(tmp_path):
    address = UnixAddress(tmp_path / "s")
    async with trio.open_nursery() as nursery:
        await nursery.start(functools.partial(serve, address, KEY, echo, refused=print))
        assert stat.S_IMODE(address.path.stat().st_mode) == 0o600
        with pytest.raises(OSError, match="another process listens"):
            await serve(address, KEY, echo, refused=print)
        nursery.cancel_scope.cancel()
    assert not address.path.exists()


async def test_the_socket_file_of_a_dead_server_is_replaced(tmp_path, nursery):
    address = UnixAddress(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(address.path))
        dead.listen()
    await nursery.start(functools.partial(serve, address, KEY, echo, refused=print))
    await (await connect(address, KEY)).aclose()


async def test_a_file_that_is_no_socket_stays(tmp_path):
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(OSError, match="not a socket"):
        await serve(UnixAddress(path), KEY, echo, refused=print)
    assert path.read_text() == "precious"


async def test_a_port_in_use_says_so(nursery):
    bound = await nursery.start(
        functools.partial(serve, TcpAddress("127.0.0.1", 0), KEY, echo, refused=print)
    )
    with pytest.raises(OSError, match="choose another port"):
        await serve(bound, KEY, echo, refused=print)


async def test_a_path_longer_than_the_kernel_takes(nursery):
    with tempfile.TemporaryDirectory() as directory:
        deep = Path(directory) / ("d" * 100) / ("e" * 100)
        deep.mkdir(parents=True)
        address = UnixAddress(deep / "socket")
        async with trio.open_nursery() as server:
            await server.start(functools.partial(serve, address, KEY, echo, refused=print))
            async with await connect(address, KEY) as link:
                await link.send(messages.Drain())
                assert (await link.receive())[0] == messages.Drain()
            server.cancel_scope.cancel()
        with pytest.raises(OSError, match="too long"):
            await serve(UnixAddress(deep / ("s" * 120)), KEY, echo, refused=print)
