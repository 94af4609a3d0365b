"""A server as a child process. Invariant: it ends, with all of its session, with the block that
started it, unless it is kept; during the block, its death is noticed at once.

A kept server stays for the next actor, even if this process dies, unless the block ends by an error
of the server. It stays for the time in `Keeping`, and then ends by itself (`guarded_command`). The
end of a run does not wait for that (`kept_servers.servers_ended`).

A container is the exception: its client ends so, after SIGTERM, which stops the container; but the
container of a client that was killed continues.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec
import trio

from asyncrl.engines.servers.errors import ServerError, ServerGone
from asyncrl.engines.servers.guarded_command import KEEP, OWNED
from asyncrl.engines.servers.kept_servers import (
    OwnedServer,
    ServerAddress,
    ServerRecord,
    make_room,
    remember,
    take_over,
)
from asyncrl.runtime.processes.process import Process, spawn

logger = logging.getLogger(__name__)

TAKEN_OVER_S = 30.0
"""Seconds within which a server that is taken over must answer, or else it is ended."""


RETURN_ROUTING = "--enable-return-routed-experts"
"""The argument of both kinds of servers for `ServerLaunch.routing`."""


class AdapterRoom(msgspec.Struct, frozen=True):
    """Room of a server for adapters of this `rank`, of the layers whose names end in `targets`;
    requests of up to `versions` of them are decoded at a time."""

    rank: int
    targets: tuple[str, ...]
    versions: int


class ServerLaunch(msgspec.Struct, frozen=True):
    """The start of a server. `python` is the command of a Python that has it: a path, or `docker
    run … python3`. It decodes `slots` rollouts of at most `context_tokens` tokens at a time, and
    the canary, and sends news about every `chunk_tokens` tokens, if it takes that option at its
    start. `gpus` are those of this machine that it may use; all where empty. Its first `weights`
    come from the model's files, or, where these hold none, are arbitrary. With `routing` it returns
    the experts of tokens to requests that ask for them; with room for `adapters` it loads those
    beside its base."""

    python: tuple[str, ...]
    model: str
    dtype: str
    device: str
    slots: int
    context_tokens: int
    tensor_parallel: int = 1
    seed: int = 0
    arguments: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    chunk_tokens: int = 8
    weights: Literal["auto", "dummy"] = "auto"
    routing: bool = False
    adapters: AdapterRoom | None = None


class Keeping(msgspec.Struct, frozen=True):
    """Life of a server beyond its actor: `folder` holds those that are kept, each for `seconds`;
    with `takes_over`, one of them that equals the one this actor would start is taken over."""

    folder: Path
    seconds: float
    takes_over: bool


class ServerProcess:
    """A server of this actor's, at the `url`, `key` and `socket` of its `ServerAddress`. One that
    was `taken_over` had another actor."""

    def __init__(self, owned: OwnedServer, *, taken_over: bool) -> None:
        address = owned.record.address
        self.url, self.key, self.socket = address.url, address.key, address.socket
        self.process, self.taken_over = owned.process, taken_over
        self._owned = owned

    async def watch(self) -> None:
        """Wait for its death, and raise ServerGone with the end of its log. It waits for the
        leader, which a server ends when any other part dies."""
        code = await self.process.wait()
        raise ServerGone(
            f"the server at {self.url} {_ended(code)}; the end of its log {self.process.log}:",
            log=self.process.tail(),
        )

    def keep(self) -> None:
        """Let it outlive this process."""
        with contextlib.suppress(OSError):  # it has died, which `watch` reports
            self._owned.guard.send(KEEP)

    def leave(self) -> None:
        """Release it."""
        self._owned.guard.close()

    async def end(self) -> None:
        """End it, and all processes it started. A cancellation waits for that."""
        await self._owned.end()


class ServerStart(msgspec.Struct, frozen=True):
    """The start of a server of any kind. `like` is its command without the parts that differ for
    each server; with its `environment` it identifies the configuration. `begin` returns the whole
    command and the server's address, for a folder of its own; `ready` returns when a new server is,
    and `answers` when one that was taken over does; both raise ServerGone."""

    name: str
    log: Path
    cores: Collection[int] | None
    environment: Mapping[str, str]
    like: Sequence[str]
    begin: Callable[[Path], tuple[list[str], ServerAddress]]
    ready: Callable[[ServerProcess], Awaitable[None]]
    answers: Callable[[ServerProcess], Awaitable[None]]

    @property
    def gpus(self) -> str:
        """The GPUs that are its own, as in CUDA_VISIBLE_DEVICES; empty: none."""
        return self.environment.get("CUDA_VISIBLE_DEVICES", "")

    @property
    def alike(self) -> str:
        """A digest, the same for all servers that can replace it."""
        return likeness(self.like, self.environment)

    def record(self, address: ServerAddress) -> ServerRecord:
        """The record of a server with this start."""
        return ServerRecord(self.name, address, self.gpus, str(self.log), self.alike)


@asynccontextmanager
async def server_process(
    start: ServerStart, keeping: Keeping | None
) -> AsyncIterator[ServerProcess]:
    """A ready server for the length of the block: a kept one, if `keeping` allows it and there is
    one, else a new one. Use it in the main thread. Raises ServerGone where it dies before, or is
    not ready in time; it leaves no process then. In the block, run `watch` concurrently."""
    server = await _taken_over(start, keeping) or await _begun(start, keeping)
    ends = keeping is None or keeping.seconds == 0
    try:
        yield server
    except BaseException as error:
        ends = ends or _of_server(error)
        raise
    finally:
        if ends:
            await server.end()
        server.leave()


async def _taken_over(start: ServerStart, keeping: Keeping | None) -> ServerProcess | None:
    """A kept server that answers; None where there is none."""
    if keeping is None or not keeping.takes_over:
        return None
    while owned := await take_over(keeping.folder, start.name, start.alike):
        server = ServerProcess(owned, taken_over=True)
        try:
            await _until_ready(server, start.answers)
        except ServerGone as error:
            logger.warning("%s is not taken over: %s", start.name, error)
            await server.end()
            continue
        except BaseException:
            server.leave()  # unkept: it ends
            raise
        server.keep()
        logger.info("%s is taken over: process %d", start.name, server.process.pid)
        return server
    return None


async def _begun(start: ServerStart, keeping: Keeping | None) -> ServerProcess:
    """A new server, once it is ready."""
    if keeping is not None:
        await make_room(keeping.folder, start.name, start.gpus)
    files = Path(tempfile.mkdtemp(prefix="asyncrl-"))  # short, as names of sockets must be
    try:
        command, address = start.begin(files)
        owned = OwnedServer(start.record(address), files, *_spawned(start, files, command, keeping))
    except BaseException:
        shutil.rmtree(files, ignore_errors=True)
        raise
    server = ServerProcess(owned, taken_over=False)

    async def ready(server: ServerProcess) -> None:
        await trio.lowlevel.wait_readable(owned.guard)  # until the guard confirms the ownership
        owned.guard.recv(len(OWNED))
        await start.ready(server)

    try:
        await _until_ready(server, ready)
    except BaseException:
        await server.end()
        raise
    if keeping is not None and keeping.seconds > 0:
        remember(keeping.folder, files, owned.record)
        server.keep()
    return server


def _spawned(
    start: ServerStart, files: Path, command: list[str], keeping: Keeping | None
) -> tuple[Process, socket.socket]:
    """Start the command under its guard. Also returns this process's end of the connection."""
    ours, theirs = socket.socketpair()
    guard = [sys.executable, "-m", "asyncrl.engines.servers.guarded_command"]
    with theirs:
        keep_s = 0.0 if keeping is None else keeping.seconds
        process = spawn(
            start.name,
            [*guard, str(files), str(theirs.fileno()), str(keep_s), *command],
            log=start.log,
            cores=start.cores,
            env=dict(start.environment),
            descriptors=[theirs.fileno()],
        )
    return process, ours


async def _until_ready(
    server: ServerProcess, ready: Callable[[ServerProcess], Awaitable[None]]
) -> None:
    """Wait until it is ready, has died, or the time is over."""
    failures: list[ServerGone] = []

    async def watch() -> None:
        try:
            await server.watch()
        except ServerGone as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            await ready(server)
        except ServerGone as error:
            failures.append(ServerGone(f"{error}: {server.process.log}", log=server.process.tail()))
        nursery.cancel_scope.cancel()
    if failures:
        raise failures[0]


def likeness(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """A SHA-256 of a server's configuration: its command, without the parts that differ for each
    server, and the environment variables that it may read: `variables`, and those of this
    process."""
    heeded = {name: value for name, value in os.environ.items() if name.startswith(_HEEDED)}
    identity = repr((list(command), sorted({**heeded, **variables}.items())))
    return hashlib.sha256(identity.encode()).hexdigest()


_HEEDED = ("CUDA", "GLOO", "HF_", "LD_", "NCCL", "PYTHON", "TORCH", "TRITON")


def _of_server(error: BaseException) -> bool:
    """True if the server caused the error, or may have: then it is not kept."""
    if isinstance(error, BaseExceptionGroup):
        return any(_of_server(one) for one in error.exceptions)
    return isinstance(error, ServerError)


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
