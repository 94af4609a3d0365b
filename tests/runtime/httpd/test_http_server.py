"""Whatever strangers send, the server goes on, and they take no more of it than they may."""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import trio
from http_world import KEY, LIMITS, Stream, World, asked, opened, read, request, until
from hypothesis import example, given, settings
from hypothesis import strategies as st
from some_values import drawn
from trio.testing import MockClock, lockstep_stream_pair, wait_all_tasks_blocked

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
UPGRADE = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: {}\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def field(index: int, value: bytes) -> bytes:
    """A header of HTTP/2 whose name has this index, written out."""
    return bytes([index, len(value)]) + value


def h2(method: bytes, path: bytes) -> bytes:
    block = field(2, method) + field(4, path) + b"\x86" + field(1, b"a")
    return PREFACE + frame(4, 0, 0, b"") + frame(1, 5, 1, block)


@pytest.mark.parametrize(
    "sent",
    [
        request(headers=UPGRADE.format("AAAA")),
        request(headers=UPGRADE.format("a"), method="GET"),
        h2(b"GET", b"/\xff"),
        h2(b"G\xff", b"/"),
        b"\xff" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"GET / HTTP/0.9\r\n\r\n",
        b"GET / HTTP/9.9\r\nhost: a\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx" + b"y" * 5000,
        b"GET / HTTP/1.1\r\nhost: a\r\n" + b"a:\r\n" * 1000 + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\n" + b"a:\n" * 1000 + b"\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: " + b"9" * 2000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        request(body="0\r\n\r\n", headers="transfer-encoding: chunked\r\n"),
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET http://[/ HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /%ff%00%c0 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"",
    ],
)
async def test_no_bytes_of_a_stranger_end_it(sent: bytes, autojump_clock: MockClock) -> None:
    async with opened() as world:
        stream = world.network.connect()
        await stream.send_all(sent)
        await stream.send_eof()
        said = await read(stream)
        assert said == b"" or said.startswith(b"HTTP/1.1 ")
        assert said.count(b"connection: close") <= 1, "a stranger has one answer"
        assert b"Traceback" not in said and "failed" not in world.refused
        assert (await asked(world, request(body="hi"))).endswith(b"POST hi")
        assert world.server.connections == 0


@settings(max_examples=drawn(200), deadline=None)
@given(
    pieces=st.lists(
        st.binary(max_size=30)
        | st.sampled_from(
            [request(body="x"), request(headers=KEY), PREFACE, b"\r\n", b"0\r\n\r\n"]
        ),
        max_size=6,
    )
)
def test_any_bytes_in_any_pieces_end_one_connection_alone(pieces: list[bytes]) -> None:
    async def main() -> None:
        async with opened() as world:
            stream = world.network.connect()
            for piece in pieces:
                await stream.send_all(piece)
            await stream.send_eof()
            await read(stream)
            assert "failed" not in world.refused
            assert (await asked(world, request(body="hi"))).endswith(b"POST hi")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def lined(lines: int, *, end: str = "\r\n", body: str = "hi") -> bytes:
    """A request whose head has so many lines, without the blank one."""
    more = "".join(f"x-{n}: {n}\r\n" for n in range(lines - 4))
    return request(body=body, headers=KEY + more).replace(b"\r\n", end.encode())


CHUNKED = request(body="2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n", headers=KEY).replace(
    b"content-length: 21", b"transfer-encoding: chunked"
)
WHOLE = (
    *(request(body="one", headers=KEY), request("/stream", headers=KEY), CHUNKED),
    *(request("/a%20b?c=d", method="GET", headers=KEY), request("/", "x" * 40, headers=KEY)),
    *(lined(LIMITS.head_lines), lined(LIMITS.head_lines, end="\n"), request(body="", headers=KEY)),
    request(body="\r\n\r\n", headers=KEY),
)
"""Requests of a known client that are answered."""
LAST = (
    *(request(body="bye"), lined(LIMITS.head_lines + 1), lined(LIMITS.head_lines + 1, end="\n")),
    *(request("/unread", "x" * 90), b"GET / HTTP/9.9\r\nhost: a\r\n\r\n", b"\xff\r\n\r\n"),
    request(headers=KEY + "connection: close\r\n"),
)
"""Requests that end a connection, and bytes that are no request."""


async def heard(pieces: Sequence[bytes]) -> tuple[bytes, list[bytes], list[str]]:
    """The answers to a client that sends these pieces, each after the last one is read, without
    the dates; the bodies that the application has, and the refusals."""
    async with opened() as world:
        stream = world.network.connect()
        for piece in pieces:
            await stream.send_all(piece)
            await wait_all_tasks_blocked()
        said = re.sub(rb"date: [^\r]*\r\n", b"", await read(stream))
        await wait_all_tasks_blocked()
        return said, world.bodies, list(world.refused)


@example(ahead=[CHUNKED, lined(LIMITS.head_lines)], last=lined(LIMITS.head_lines + 1), cuts=None)
@given(
    ahead=st.lists(st.sampled_from(WHOLE), max_size=3),
    last=st.sampled_from(LAST),
    cuts=st.lists(st.integers(0, 1200), max_size=6),
)
def test_the_answers_are_the_same_however_the_bytes_are_cut(
    ahead: list[bytes], last: bytes, cuts: list[int] | None
) -> None:
    """Also where each byte comes by itself. Each request but the last one is answered with 200."""
    sent = b"".join([*ahead, last])
    places = range(len(sent)) if cuts is None else sorted({*cuts} & {*range(len(sent))})
    pieces = [sent[start:end] for start, end in pairwise([0, *places, len(sent)]) if end > start]

    async def main() -> None:
        whole = await heard([*ahead, last])
        assert whole[0].count(b"HTTP/1.1 200") >= len(ahead)
        assert len(re.findall(rb"HTTP/1.1 \d{3} ", whole[0])) == len(ahead) + 1
        assert await heard(pieces) == whole

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("end", ["\r\n", "\n"])
async def test_a_head_may_have_as_many_lines_as_it_may_and_no_more(
    end: str, autojump_clock: MockClock
) -> None:
    async with opened() as world:
        stream = world.network.connect()
        for _ in range(2):  # lines of one head are not counted in the next
            await stream.send_all(lined(LIMITS.head_lines, end=end))
            assert (await until(stream, b"hi")).startswith(b"HTTP/1.1 200")
        said = await asked(world, lined(LIMITS.head_lines + 1, end=end))
        assert said.startswith(b"HTTP/1.1 431") and world.refused == ["malformed"]


@pytest.mark.parametrize(
    "sent", [b"\xff\r\n\r\n", b"GET / HT", b"GET / HTTP/9\r\n\r\n", b"GET /fail HTTP/1.1\r\n" * 99]
)
async def test_a_stranger_that_leaves_before_its_refusal_is_no_fault(
    sent: bytes, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each was a traceback in the log of a run."""
    async with opened() as world:
        client = world.network.connect()
        await client.send_all(sent)
        await client.aclose()
        await trio.sleep(60)
    assert caplog.text == ""


async def test_an_application_that_fails_costs_one_connection(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as world:
        said = await asked(world, request("/fail", headers=KEY))
        assert said.startswith(b"HTTP/1.1 500") and b"secret" not in said
        assert "secret" in caplog.text and world.refused == ["failed"]
        head = await asked(world, request("/fail", method="HEAD", headers=KEY))
        assert head.startswith(b"HTTP/1.1 500") and head.endswith(b"\r\n\r\n")
        for _ in range(5):  # one traceback, however often a client has it fail
            await asked(world, request("/fail", headers=KEY))
        assert [record.message for record in caplog.records] == ["a request failed"]
        assert (await asked(world, request())).startswith(b"HTTP/1.1 200")


async def test_a_client_that_is_known_goes_on_and_a_stranger_does_not(
    autojump_clock: MockClock,
) -> None:
    async with opened() as world:
        stream = world.network.connect()
        for body in ("one", "two"):
            await stream.send_all(request(body=body, headers=KEY))
            assert b"connection: close" not in await until(stream, body.encode())
        await stream.send_all(request("/stream", headers=KEY))
        assert (await until(stream, b"0\r\n\r\n")).count(b"chunked") == 1
        await stream.send_all(request("/", method="HEAD", headers=KEY))
        assert b"content-length: 5" in await until(stream, b"\r\n\r\n")
        begun = trio.current_time()
        assert await read(stream) == b"", "it was idle"
        assert trio.current_time() - begun == pytest.approx(LIMITS.idle_s, abs=1e-3)
        assert b"connection: close" in await asked(world, request() + request())
        assert len(world.bodies) == 4 and world.refused == []


async def test_requests_sent_ahead_are_answered_in_their_order(autojump_clock: MockClock) -> None:
    async with opened() as world:
        stream = world.network.connect()
        await stream.send_all(b"".join(request(body=f"<{n}>", headers=KEY) for n in range(50)))
        said = await until(stream, b"<49>")
        assert [said.find(f"<{n}>".encode()) for n in range(50)] == sorted(
            said.find(f"<{n}>".encode()) for n in range(50)
        )
        assert world.bodies == [f"<{n}>".encode() for n in range(50)]


async def test_a_head_has_its_seconds(autojump_clock: MockClock) -> None:
    """Also where a byte comes now and then."""
    async with opened() as world:
        for pause in (100.0, 0.5):
            stream, begun = world.network.connect(), trio.current_time()
            async with trio.open_nursery() as nursery:

                async def trickle(stream: Stream = stream, pause: float = pause) -> None:
                    for byte in request(headers="x: " + "y" * 200 + "\r\n"):
                        await stream.send_all(bytes([byte]))
                        await trio.sleep(pause)

                nursery.start_soon(trickle)
                assert (await until(stream, b"in time")).startswith(b"HTTP/1.1 408")
                assert trio.current_time() - begun == pytest.approx(LIMITS.head_s, abs=0.1)
                nursery.cancel_scope.cancel()
            await stream.aclose()
        await trio.sleep(2)
        assert world.server.connections == 0 and world.refused == ["silent"] * 2


async def test_silent_strangers_keep_nobody_out(autojump_clock: MockClock) -> None:
    """The oldest has to go, and each puts off the next, so that they cannot take all the time."""
    async with opened() as world:
        for _ in range(100):
            world.network.connect()
        begun = trio.current_time()
        assert (
            await asked(world, request(body="hi", headers=KEY + "connection: close\r\n"))
        ).endswith(b"hi")
        assert 1 < trio.current_time() - begun < 4
        assert world.server.connections <= LIMITS.strangers
        assert world.refused.count("crowded") >= 97


async def test_a_known_client_is_never_closed_for_strangers(autojump_clock: MockClock) -> None:
    async with opened() as world:
        stream = world.network.connect()
        await stream.send_all(request(body="one", headers=KEY))
        await until(stream, b"one")
        for _ in range(50):
            world.network.connect()
        await trio.sleep(2)
        await stream.send_all(request(body="two", headers=KEY))
        await until(stream, b"two")


async def test_one_more_known_client_than_may_be_is_told(autojump_clock: MockClock) -> None:
    async with opened() as world:
        for _ in range(LIMITS.connections):
            stream = world.network.connect()
            await stream.send_all(request(body="hi", headers=KEY))
            await until(stream, b"hi")
        said = await asked(world, request(headers=KEY))
        assert said.startswith(b"HTTP/1.1 503") and world.refused == ["busy"]
        assert world.server.connections == LIMITS.connections


async def test_where_everybody_is_known_one_more_has_the_place_of_the_longest_idle(
    autojump_clock: MockClock,
) -> None:
    """Connections that asked once and stay shut nobody out."""
    async with opened(msgspec.structs.replace(LIMITS, makes_room=True)) as world:
        streams = [world.network.connect() for _ in range(LIMITS.connections)]
        for number in (*range(LIMITS.connections), 0):  # the first asks again
            await streams[number].send_all(request(body="hi", headers=KEY))
            await until(streams[number], b"hi")
            await trio.sleep(1)
        for _ in range(2):
            said = await asked(world, request(body="ha", headers=KEY + "connection: close\r\n"))
            assert said.endswith(b"ha") and world.refused == ["crowded"]
        assert await streams[1].receive_some() == b""
        await streams[0].send_all(request(body="ho", headers=KEY))
        await until(streams[0], b"ho")


async def test_without_a_descriptor_it_waits_by_name_and_goes_on(autojump_clock: MockClock) -> None:
    async with opened() as world:
        silent = world.network.connect()
        await wait_all_tasks_blocked()
        for _ in range(3):
            world.network.full()
        begun = trio.current_time()
        await wait_all_tasks_blocked()
        assert (await asked(world, request(body="hi"))).endswith(b"hi")
        assert trio.current_time() - begun < 5
        assert world.refused.count("descriptors") == 3
        assert await read(silent) == b"", "it had to give its descriptor back"
        assert "a file descriptor" in world.waits.idle()
        world.network.fail(errno.ECONNABORTED)
        assert (await asked(world, request(body="hi"))).endswith(b"hi")


@contextmanager
def descriptors(free: int) -> Iterator[None]:
    """The process may open so many files more."""
    limit, taken = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, limit[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for each in taken:
            os.close(each)


async def test_a_process_without_descriptors_answers_who_waits() -> None:
    """The kernel's own limit: there is room for two more, and six clients wait."""
    world = World(msgspec.structs.replace(LIMITS, strangers=10))
    with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(listening.getsockname())) for _ in range(6)
        ]
        clients[-1].sendall(request(body="hi"))
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening.dup()))
        with trio.socket.from_stdlib_socket(clients[-1].dup()) as answered, descriptors(2):
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(world.server.run, listener, world.close.wait)
                    assert (await answered.recv(1 << 16)).endswith(b"POST hi")
                    world.close.set()
    assert "descriptors" in world.refused


async def test_who_does_not_read_holds_nothing_for_ever(autojump_clock: MockClock) -> None:
    async with opened() as world:
        client, server = lockstep_stream_pair()
        world.network.come(server)
        await client.send_all(request("/large", headers=KEY))
        await trio.sleep(LIMITS.part_s - 1)
        assert world.server.connections == 1
        await trio.sleep(5)
        assert world.server.connections == 0 and world.refused == ["slow"]


async def test_a_body_that_does_not_come_holds_nothing_for_ever(autojump_clock: MockClock) -> None:
    async with opened() as world:
        for headers in ("", KEY):
            stream = world.network.connect()
            await stream.send_all(request(body="hi", headers=headers)[:-1])
            await trio.sleep(LIMITS.part_s - 1)
            assert world.server.connections == 1
            await trio.sleep(5)
            assert world.server.connections == 0 and world.refused.pop() == "silent"


async def test_who_leaves_is_seen_while_it_is_answered(autojump_clock: MockClock) -> None:
    async with opened() as world:
        for ahead in (b"", request(body="x" * 50_000, headers=KEY)):
            stream = world.network.connect()
            await stream.send_all(request("/wait", headers=KEY) + ahead)
            await trio.sleep(1)
            await stream.aclose()
            await trio.sleep(2)
        assert world.left == 2 and world.server.connections == 0


async def test_a_body_in_crumbs_is_refused(autojump_clock: MockClock) -> None:
    async with opened() as world:
        head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n" + KEY.encode()
        stream = world.network.connect()
        await stream.send_all(head + b"\r\n" + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n")
        await trio.sleep(5)
        assert world.left == 1 and world.bodies == [] and world.server.connections == 0
        stream = world.network.connect()
        await stream.send_all(head + b"\r\n" + b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n")
        await until(stream, b"x" * 1000)


async def test_an_answer_without_a_look_at_the_body_is_read_before_the_end(
    autojump_clock: MockClock,
) -> None:
    async with opened() as world:
        for headers in ("", KEY):
            said = await asked(world, request("/unread", "x" * 100_000, headers=headers))
            assert said.startswith(b"HTTP/1.1 401") and b"connection: close" in said
        assert world.refused == ["key"]


async def test_a_client_that_waits_for_100_is_told_to_go_on(autojump_clock: MockClock) -> None:
    async with opened() as world:
        stream = world.network.connect()
        head, _, body = request(body="hi", headers="expect: 100-continue\r\n").partition(
            b"\r\n\r\n"
        )
        await stream.send_all(head + b"\r\n\r\n")
        assert b" 100 " in await until(stream, b"\r\n\r\n")
        await stream.send_all(body)
        assert (await read(stream)).endswith(b"hi")


async def test_closing_lets_an_answer_end_and_waits_for_nobody_silent(
    autojump_clock: MockClock,
) -> None:
    async with opened() as world:
        world.network.connect()
        stream, begun = world.network.connect(), trio.current_time()
        await stream.send_all(request("/slow", headers=KEY))
        await wait_all_tasks_blocked()
        world.close.set()
        assert (await until(stream, b"slow")).startswith(b"HTTP/1.1 200")
        await read(stream)
    assert trio.current_time() - begun < 0.5


def test_limits_leave_most_descriptors_to_the_process() -> None:
    found = type(LIMITS).of_descriptors()
    assert 4 <= found.connections <= 1024 and 2 <= found.strangers <= 64
