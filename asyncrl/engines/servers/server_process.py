"""A server as a child process. Invariant: it ends with the block that started it and with this
process, whichever ends first, and all of its session with it; while the block lasts, its death is
noticed at once.

A container is the exception: its client ends so, and is asked to first (SIGTERM, which stops the
container); but the container of a client that was killed goes on.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec
import trio

from asyncrl.engines.servers.errors import ServerGone
from asyncrl.processes.process import Process, spawn

_TERM_S = 5.0
"""Seconds that a server gets to end by itself; a container's client needs it, a server of ours
holds nothing."""


class ServerProcess:
    """A server that was started; `url` is its address, and `key` what it asks for. `socket` is the
    file of a Unix socket at which it listens in place of a port; empty: none."""

    def __init__(self, url: str, key: str, process: Process, socket: str = "") -> None:
        self.url, self.key, self.socket = url, key, socket
        self.process = process

    async def watch(self) -> None:
        """Wait for its death, which is ServerGone, with the end of its log. Of its leader's: a
        server ends that when any other part dies."""
        code = await self.process.wait()
        raise ServerGone(
            f"the server at {self.url} {_ended(code)}; the end of its log {self.process.log}:",
            log=self.process.tail(),
        )


class ServerLaunch(msgspec.Struct, frozen=True):
    """The start of a server. `python` is the command of a Python that has it: a path, or
    `docker run … python3`. It decodes `slots` rollouts of at most `context_tokens` tokens at a
    time, and the canary, and sends news about every `chunk_tokens` tokens, where it is told that at
    its start. `gpus` are those of this machine that it may use; all where empty. Its first
    `weights` are those of the model's files, or, where these hold none, any."""

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


def start_guarded(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    cores: Collection[int] | None,
    environment: Mapping[str, str],
) -> Process:
    """Start `command` so that nothing of it outlives this process. Use it in the main thread."""
    guard = [sys.executable, "-m", "asyncrl.engines.servers.guarded_command"]
    return spawn(name, [*guard, *command], log=log, cores=cores, env=dict(environment))


@asynccontextmanager
async def kept(
    server: ServerProcess, ready: Callable[[], Awaitable[None]]
) -> AsyncIterator[ServerProcess]:
    """The server for the length of the block, from when `ready` returns. Raises ServerGone where it
    dies before, or `ready` does; nothing of it is left either way. In the block, run `watch` beside
    everything else."""
    try:
        await _until_ready(server, ready)
        yield server
    finally:
        await _end(server.process)


async def _until_ready(server: ServerProcess, ready: Callable[[], Awaitable[None]]) -> None:
    """Wait for whichever comes first: ready, dead, or out of time."""
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
            await ready()
        except ServerGone as error:
            failures.append(ServerGone(f"{error}: {server.process.log}", log=server.process.tail()))
        nursery.cancel_scope.cancel()
    if failures:
        raise failures[0]


async def _end(process: Process) -> None:
    with trio.CancelScope(shield=True):
        process.signal(signal.SIGTERM)
        with trio.move_on_after(_TERM_S):
            await process.wait()
        await process.kill_group()


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
