"""A server on a network of memory, and an application that does what its path says."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from asyncrl.runtime.httpd.asgi import Headers, HttpRefusal, Receive, Scope, Send
from asyncrl.runtime.httpd.http_limits import HttpLimits
from asyncrl.runtime.httpd.http_server import HttpServer
from asyncrl.runtime.ipc.waits import Waits

Stream = trio.abc.HalfCloseableStream
KEY = "authorization: yes\r\n"
LIMITS = HttpLimits(
    connections=2, strangers=3, head_s=10.0, head_bytes=4096, head_lines=20, idle_s=75, part_s=60
)


class Network(trio.abc.Listener[Stream]):
    """A listener to whom the test brings the connections, or what accepting one raises."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Stream | OSError](1000)

    async def accept(self) -> Stream:
        given = await self._receive.receive()
        if isinstance(given, OSError):
            raise given
        return given

    async def aclose(self) -> None:
        self._receive.close()
        await trio.lowlevel.checkpoint()

    def fail(self, number: int) -> None:
        self._send.send_nowait(OSError(number, os.strerror(number)))

    def full(self) -> None:
        self.fail(errno.EMFILE)

    def come(self, server: Stream) -> None:
        self._send.send_nowait(server)

    def connect(self) -> Stream:
        client, server = memory_stream_pair()
        self.come(server)
        return client


class World:
    """`left` counts the requests whose client was found to be gone."""

    def __init__(self, limits: HttpLimits) -> None:
        self.network, self.close, self.waits = Network(), trio.Event(), Waits()
        self.refused: list[HttpRefusal] = []
        self.left = 0
        self.bodies: list[bytes] = []
        self.server = HttpServer(
            self.app,
            limits,
            known=self.known,
            refused=self.refused.append,
            waits=self.waits,
            owner="a test",
        )

    @staticmethod
    def known(headers: Headers) -> bool:
        return (b"authorization", b"yes") in headers

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["path"]:
            case "/fail":
                raise RuntimeError("secret")
            case "/unread":
                await answer(send, 401, b"no")
            case "/large":
                await answer(send, 200, b"x" * 100_000)
            case "/wait":
                while (await receive())["type"] != "http.disconnect":
                    pass
                self.left += 1
            case "/slow":
                await trio.sleep(0.1)
                await answer(send, 200, b"slow")
            case "/stream":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                for part in (b"one ", b"two"):
                    more = part != b"two"
                    await send({"type": "http.response.body", "body": part, "more_body": more})
            case _:
                body, more = b"", True
                while more:
                    event = await receive()
                    if event["type"] == "http.disconnect":
                        self.left += 1
                        return
                    body, more = body + event["body"], event["more_body"]
                self.bodies.append(body)
                await answer(send, 200, scope["method"].encode() + b" " + body)


async def answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def opened(limits: HttpLimits = LIMITS) -> AsyncIterator[World]:
    """A server that runs; it must still run at the end."""
    world = World(limits)
    async with trio.open_nursery() as nursery:
        ended = trio.Event()

        async def run() -> None:
            await world.server.run(world.network, world.close.wait)
            ended.set()

        nursery.start_soon(run)
        yield world
        assert not ended.is_set() or world.close.is_set()
        world.close.set()


def request(path: str = "/", body: str = "", *, headers: str = "", method: str = "POST") -> bytes:
    length = f"content-length: {len(body)}\r\n" if method == "POST" else ""
    return f"{method} {path} HTTP/1.1\r\nhost: a\r\n{length}{headers}\r\n{body}".encode()


async def read(stream: Stream) -> bytes:
    """All that comes until the server closes."""
    said = b""
    while data := await stream.receive_some(1 << 16):
        said += data
    return said


async def until(stream: Stream, end: bytes) -> bytes:
    """Bytes that come until they end so."""
    said = b""
    while not said.endswith(end):
        data = await stream.receive_some(1 << 16)
        assert data, said
        said += data
    return said


async def asked(world: World, sent: bytes) -> bytes:
    """The whole answer on a connection of its own, once the server has closed it."""
    stream = world.network.connect()
    await stream.send_all(sent)
    said = await read(stream)
    await stream.aclose()
    await wait_all_tasks_blocked()
    return said
