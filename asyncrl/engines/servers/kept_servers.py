"""Servers whose actor is gone, and that wait for the next one.

A folder of the run has a link to each server's own folder, in which its record is, and its guard's
socket (`guarded_command`). Invariant: a server has one owner at a time, which its guard decides;
whoever may not open the run's directory can neither find one nor pass for one.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import trio

from asyncrl.engines.servers.guarded_command import GUARD, OWNED
from asyncrl.runtime.processes.process import Process
from asyncrl.runtime.run_dir import SERVERS

RECORD = "server.json"
"""The record of a server, in its folder; readable by its user alone, as its key is in it."""
GREETING_S = 5.0
"""Seconds that a guard has to say that a server is nobody else's."""
_TERM_S = 5.0
"""Seconds that a server gets to end by itself; a container's client needs it, a server of ours
holds nothing."""
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the other end of a Unix socket."""


class ServerAddress(msgspec.Struct, frozen=True):
    """The `url` of a server, and the `key` that it asks for. `socket` is the file of a Unix socket
    at which it listens in place of a port; empty: none."""

    url: str
    key: str = ""
    socket: str = ""


class ServerRecord(msgspec.Struct, frozen=True):
    """A server: its `name` and address, the GPUs it has as CUDA_VISIBLE_DEVICES names them, where
    it writes, and what it is, `alike`."""

    name: str
    address: ServerAddress
    gpus: str
    log: str
    alike: str


class OwnedServer(NamedTuple):
    """A server that this process owns: its record, its folder `files`, the `process` of its guard,
    and the connection to that."""

    record: ServerRecord
    files: Path
    process: Process
    guard: socket.socket

    async def end(self) -> None:
        """End it, with its session and its files, and own it no longer. A cancellation waits for
        that."""
        with self.guard, trio.CancelScope(shield=True):
            self.process.signal(signal.SIGTERM)
            with trio.move_on_after(_TERM_S):
                await self.process.wait()
            await self.process.kill_group()
            await trio.to_thread.run_sync(partial(shutil.rmtree, self.files, ignore_errors=True))


def remember(folder: Path, files: Path, record: ServerRecord) -> None:
    """Have the server of the folder `files` found in `folder` from now on."""
    _write(files, record)
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / files.name).symlink_to(files, target_is_directory=True)


async def take_over(folder: Path, name: str, alike: str) -> OwnedServer | None:
    """Own a server that nobody does, and that is `alike`: the one that has the `name`, or else
    another, which has it from now on; None where there is none."""
    found = [(files, record) for files, record in _records(folder) if record.alike == alike]
    for files, record in sorted(found, key=lambda one: one[1].name != name):
        if owned := await _own(files, msgspec.structs.replace(record, name=name)):
            _write(files, owned.record)
            return owned
    return None


async def make_room(folder: Path, name: str, gpus: str) -> None:
    """End servers that nobody owns and that are in the way of a new one: those of its name, and
    those that have one of its `gpus`."""
    wanted = set(filter(None, gpus.split(",")))
    await _end_those(
        (files, record)
        for files, record in _records(folder)
        if record.name == name or wanted & set(record.gpus.split(","))
    )


@asynccontextmanager
async def servers_ended(run: Path) -> AsyncIterator[None]:
    """At the end of the block, end the servers of a run on this machine that nobody owns."""
    try:
        yield
    finally:
        await _end_those(_records(run / SERVERS))
        list(_records(run / SERVERS))  # which forgets those that have ended


async def _end_those(servers: Iterator[tuple[Path, ServerRecord]]) -> None:
    async def end_one(files: Path, record: ServerRecord) -> None:
        if found := await _own(files, record):
            await found.end()

    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            for files, record in servers:
                nursery.start_soon(end_one, files, record)


def _write(files: Path, record: ServerRecord) -> None:
    path = files / RECORD
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(record))


def _records(folder: Path) -> Iterator[tuple[Path, ServerRecord]]:
    """The servers of a folder, each with its own; those that ended are removed from it."""
    for link in sorted(folder.glob("*")):
        try:
            files = link.readlink()
            state = files.stat()
            if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o077:
                raise FileNotFoundError(f"{files} is somebody else's by now")
            record = msgspec.json.decode((files / RECORD).read_bytes(), type=ServerRecord)
        except (OSError, msgspec.DecodeError):
            link.unlink(missing_ok=True)
            continue
        yield files, record


async def _own(files: Path, record: ServerRecord) -> OwnedServer | None:
    """Own the server of a folder; None where it is somebody's, or has ended."""
    with trio.socket.socket(trio.socket.AF_UNIX) as asking, trio.move_on_after(GREETING_S):
        try:
            await asking.connect(str(files / GUARD))
            if await asking.recv(len(OWNED)) == OWNED:
                return _owned(record, files, socket.socket(fileno=os.dup(asking.fileno())))
        except OSError:
            pass  # it has ended meanwhile
    return None


def _owned(record: ServerRecord, files: Path, guard: socket.socket) -> OwnedServer | None:
    """A server by the connection to its guard; None if that is not this user's. Raises OSError
    where it has ended."""
    found = guard.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(found)
    if user != os.geteuid():
        guard.close()
        return None
    log = Path(record.log)
    process = Process(record.name, pid, partial(_told, guard), log, log.stat().st_size)
    return OwnedServer(record, files, process, guard)


def _told(guard: socket.socket) -> int:
    """The status that a guard said its command ended with; that of SIGKILL where it said none."""
    try:
        return int(guard.recv(16))
    except (OSError, ValueError):
        return -signal.SIGKILL
