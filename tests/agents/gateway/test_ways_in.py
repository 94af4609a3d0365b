"""The ways into a gateway that were open, over a socket and in real time."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
from gateway_world import KEY, MODEL, Says, chat, say, scripted, served, write_chat

from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.bundled.bundled_model import VOCABULARY
from asyncrl.runtime.httpd.asgi import HttpRefusal
from asyncrl.runtime.httpd.http_limits import HttpLimits
from asyncrl.tasks.text import Tokenizer

CONTEXT = 32_768
PATIENCE_S = 300.0
BLOCKED_S = 1.5
"""Seconds that the event loop may be held up by one request: a fifth of what it was, on a machine
that does other things too."""
UPGRADE = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: {}\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_chat(tmp_path_factory.mktemp("model"))


class Door:
    """A gateway that is served. `slowest` is the longest time that its event loop was held up."""

    def __init__(self, port: int) -> None:
        self.port, self.slowest = port, 0.0
        self.refused: list[HttpRefusal] = []

    async def send(self, data: bytes) -> bytes:
        """All that the server answers on a connection of its own."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        said = b""
        async with stream:
            try:
                await stream.send_all(data)
                while data := await stream.receive_some(1 << 16):
                    said += data
            except trio.BrokenResourceError:
                pass  # it did not want to read all
        return said

    async def post(self, body: bytes, path: str = "/sessions/r1-1/v1/chat/completions") -> bytes:
        head = f"POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\n"
        head += f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        return await self.send(head.encode() + body)

    async def ready(self) -> bool:
        return b" 200 " in await self.send(b"GET /ready HTTP/1.1\r\nhost: a\r\n\r\n")

    async def tick(self) -> None:
        while True:
            begun = trio.current_time()
            await trio.sleep(0.01)
            self.slowest = max(self.slowest, trio.current_time() - begun - 0.01)


@asynccontextmanager
async def opened(tokenizer: Tokenizer) -> AsyncIterator[Door]:
    """A gateway of a model with a long context. It must still run at the end."""
    engine = scripted(Says(say("x")))
    await engine.load(0, None)
    refused: list[HttpRefusal] = []
    limits = HttpLimits(connections=8, strangers=4)
    with trio.fail_after(PATIENCE_S):
        async with served(
            engine, tokenizer, context_tokens=CONTEXT, refused=refused.append, limits=limits
        ) as (_, url):
            door = Door(int(url.rpartition(":")[2]))
            door.refused = refused
            yield door
            assert await door.ready()


def h2(method: bytes, path: bytes) -> bytes:
    """A request of HTTP/2 in the clear."""
    fields = bytes([2, len(method)]) + method + bytes([4, len(path)]) + path + b"\x86\x01\x01a"
    return PREFACE + bytes([0, 0, len(fields), 1, 5, 0, 0, 0, 1]) + fields


async def test_no_stranger_ends_the_gateway(tokenizer: Tokenizer) -> None:
    """The four requests that ended a rollout actor, and so a run."""
    async with opened(tokenizer) as door:
        for sent in (
            f"GET / HTTP/1.1\r\nhost: a\r\n{UPGRADE.format('AAAA')}\r\n".encode(),
            f"GET / HTTP/1.1\r\nhost: a\r\n{UPGRADE.format('a')}\r\n".encode(),
            h2(b"GET", b"/\xff"),
            h2(b"\xff", b"/"),
        ):
            said = await door.send(sent)
            assert said.startswith((b"HTTP/1.1 404", b"HTTP/1.1 505")), said
            assert await door.ready()


async def test_silent_connections_leave_room(tokenizer: Tokenizer) -> None:
    async with opened(tokenizer) as door:
        with silent(door.port, 60):
            said = await door.post(json.dumps(chat("hi", max_tokens=4)).encode())
            assert b" 200 " in said and door.refused.count("crowded") > 10


@contextmanager
def silent(port: int, count: int) -> Iterator[None]:
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    try:
        yield
    finally:
        for each in sockets:
            each.close()


def body(largest: int, start: bytes, piece: bytes, end: bytes) -> bytes:
    """JSON of that many bytes: a start, as many pieces as there is room for, and an end."""
    return start + piece * ((largest - len(start) - len(end)) // len(piece)) + end


MESSAGES = b'{"model": "policy", "messages": ['
FIRST = MESSAGES + b'{"role": "user", "content": "'
ASSISTANT = MESSAGES + b'{"role": "assistant", "content": "", '
EVIL = {
    "annotations": (ASSISTANT + b'"annotations": [[]', b",[]", b"]}]}"),
    "arguments": (
        ASSISTANT
        + b'"tool_calls": [{"id": "", "function": {"name": "f", "arguments": "{\\"a\\": [1',
        b",1",
        b']}"}}]}]}',
    ),
    "tools": (FIRST + b'hi"}], "tools": [{"a": [[]', b",[]", b"]}]}"),
    "messages": (MESSAGES + b'{"role":"user"}', b',{"role":"user"}', b"]}"),
    "no messages": (MESSAGES + b"1", b",1", b"]}"),
    "names": (b'{"a": 1', b',"a": 1', b"}"),
    "depth": (b'{"model": ', b"[", b"}"),
    "words": (FIRST, b"word ", b'"}]}'),
    "one word": (FIRST, b"a", b'"}]}'),
    "stops": (FIRST + b'hi"}], "stop": "', b"a", b'"}'),
    "white space": (b'{"model": "policy", "messages": [] ', b" ", b"}"),
}


@pytest.mark.explore
@pytest.mark.parametrize("size", ["as large as may be", "8 MiB"])
async def test_no_request_holds_up_the_event_loop(tokenizer: Tokenizer, size: str) -> None:
    """Five at a time of each, of who has the key. 8 MiB of `[]` held it up for 7.6 s."""
    settings = Settings(model=MODEL, context_tokens=CONTEXT, vocabulary=VOCABULARY)
    largest = settings.body_bytes if size != "8 MiB" else 8 << 20
    async with opened(tokenizer) as door, trio.open_nursery() as nursery:
        nursery.start_soon(door.tick)
        for name, (start, piece, end) in EVIL.items():
            sent = body(largest, start, piece, end)
            door.slowest = 0.0
            async with trio.open_nursery() as five:
                for _ in range(5):
                    five.start_soon(refused, door, name, sent)
                five.start_soon(door.ready)
            assert door.slowest < BLOCKED_S, (name, door.slowest)
        nursery.cancel_scope.cancel()


async def refused(door: Door, name: str, sent: bytes) -> None:
    said = await door.post(sent)
    # who sends 8 MiB may be cut off before it has read that they are too many
    assert said.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413")) or not said, (name, said[:300])


async def test_a_body_that_is_too_large_is_not_read(tokenizer: Tokenizer) -> None:
    async with opened(tokenizer) as door:
        head = "POST /sessions/r1-1/v1/completions HTTP/1.1\r\nhost: a\r\n"
        sent = f"{head}authorization: Bearer {KEY}\r\ncontent-length: {1 << 40}\r\n\r\n"
        said = await door.send(sent.encode())
        assert b" 413 " in said and b"too_large" in said


class Counting:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, fast: object) -> None:
        self.fast, self.characters = fast, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.fast, name)

    def encode(self, text: str, **options: bool) -> object:
        self.characters += len(text)
        return self.fast.encode(text, **options)  # type: ignore[attr-defined]


async def test_what_cannot_fit_is_not_tokenized(tmp_path: Path) -> None:
    tokenizer = write_chat(tmp_path)
    counting = Counting(tokenizer._fast)
    tokenizer._fast = counting
    async with opened(tokenizer) as door:
        for _ in range(3):
            sent = json.dumps({"model": MODEL, "prompt": "word " * 200_000}).encode()
            said = await door.post(sent, "/sessions/r1-1/v1/completions")
            assert b"context_length_exceeded" in said
    assert counting.characters < 3 * 2 * CONTEXT
