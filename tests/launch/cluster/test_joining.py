"""A machine that was cut off: it comes back where its launcher lives, and else it ends."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from asyncrl.launch.cluster.join_token import JoinToken, certify
from asyncrl.launch.cluster.joining import LEAVE, ToldToLeave, join_again
from asyncrl.messages.address import TcpAddress
from asyncrl.runtime.ipc import endpoints
from asyncrl.runtime.ipc.endpoints import serve
from asyncrl.runtime.ipc.errors import LinkBroken, LinkError
from asyncrl.runtime.ipc.keys import new_key
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.tls import Tls
from asyncrl.runtime.run_dir import TLS

PATIENCE_S = 30.0


class Sides:
    """A launcher's and a machine's files, and the token between them."""

    def __init__(self, folder: Path) -> None:
        self.key, (head, self._agents) = new_key(), certify("127.0.0.1")
        self.run = folder / "machine"
        for place in (folder / "head", self.run):
            place.mkdir(mode=0o700)
        head.write(folder / "head")
        self.tls = Tls.of(folder / "head" / TLS)

    def token(self, port: int, key: bytes | None = None) -> JoinToken:
        token = JoinToken(f"tcp:127.0.0.1:{port}", key or self.key, self._agents)
        token.tls.write(self.run)
        return token

    async def serve(self, port: int, nursery: trio.Nursery) -> int:
        """Be a launcher that waits for the other side to hang up. Returns its port."""
        bound = await nursery.start(
            partial(
                serve, TcpAddress("127.0.0.1", port), self.key, hold, refused=print, tls=self.tls
            )
        )
        return int(bound.port)


async def hold(link: Link) -> None:
    await link.receive()


@pytest.fixture
def sides(tmp_path: Path) -> Sides:
    return Sides(tmp_path)


async def unsignalled() -> AsyncIterator[int]:
    """No signal, ever."""
    await trio.sleep_forever()
    yield 0


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A port that takes connections, and says nothing: as over a cut wire, for who is patient."""
    listening = socket.create_server(("127.0.0.1", 0))
    yield listening
    listening.close()


async def test_it_joins_a_launcher_that_can_be_reached_again(
    sides: Sides, silent: socket.socket, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "TRY_S", 0.3)
    port = silent.getsockname()[1]

    async def mend() -> None:
        await trio.sleep(0.4)
        silent.close()
        await sides.serve(port, nursery)

    nursery.start_soon(mend)
    with trio.fail_after(PATIENCE_S):
        async with await join_again(
            sides.token(port), sides.run, PATIENCE_S, unsignalled()
        ) as link:
            assert isinstance(link, Link)


async def test_it_waits_for_a_launcher_that_is_started_again(
    sides: Sides, silent: socket.socket, nursery: trio.Nursery
) -> None:
    port = silent.getsockname()[1]
    silent.close()  # nobody listens

    async def start() -> None:
        await trio.sleep(0.3)
        await sides.serve(port, nursery)

    nursery.start_soon(start)
    with trio.fail_after(PATIENCE_S):
        async with await join_again(sides.token(port), sides.run, PATIENCE_S, unsignalled()):
            pass


async def test_who_knows_another_key_gives_up_at_once(sides: Sides, nursery: trio.Nursery) -> None:
    port = await sides.serve(0, nursery)
    with trio.fail_after(PATIENCE_S), pytest.raises(LinkError) as refused:
        await join_again(sides.token(port, new_key()), sides.run, PATIENCE_S, unsignalled())
    assert refused.value.reason == "key"


async def test_it_gives_up_in_time(
    sides: Sides, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "TRY_S", 0.1)
    with trio.fail_after(PATIENCE_S), pytest.raises(LinkBroken, match="could not be reached for"):
        await join_again(sides.token(silent.getsockname()[1]), sides.run, 0.5, unsignalled())


@pytest.mark.parametrize("before", [True, False])
async def test_it_leaves_when_it_is_told_to(
    before: bool, sides: Sides, silent: socket.socket, nursery: trio.Nursery
) -> None:
    async def tell() -> None:
        if not before:
            await trio.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    with trio.open_signal_receiver(*LEAVE) as signals:
        if before:
            await tell()
        else:
            nursery.start_soon(tell)
        with trio.fail_after(PATIENCE_S), pytest.raises(ToldToLeave) as told:
            token = sides.token(silent.getsockname()[1])
            await join_again(token, sides.run, PATIENCE_S, signals)
    assert told.value.number == signal.SIGTERM
