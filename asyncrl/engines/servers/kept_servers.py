"""Servers that outlive their actor, for the next one to take over.

A folder of the run has a link to each server's own folder, in which its record is, and its guard's
socket (`guarded_command`). Invariant: a server has one owner at a time, chosen by its guard; a user
without access to the run's directory can neither find a server nor pose as one.
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
"""Seconds that a guard has to answer that a server has no other owner."""
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
    """A server: its `name` and address, its GPUs as in CUDA_VISIBLE_DEVICES, its log, and `alike`,
    the digest of its configuration."""

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
        """End it, with its session and its files, and release it. A cancellation waits for that."""
        with self.guard, trio.CancelScope(shield=True):
            self.process.signal(signal.SIGTERM)
            with trio.move_on_after(_TERM_S):
                await self.process.wait()
            await self.process.kill_group()
            await trio.to_thread.run_sync(partial(shutil.rmtree, self.files, ignore_errors=True))


def remember(folder: Path, files: Path, record: ServerRecord) -> None:
    """Register the server of the folder `files` in `folder`."""
    _write(files, record)
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / files.name).symlink_to(files, target_is_directory=True)


async def take_over(folder: Path, name: str, alike: str) -> OwnedServer | None:
    """Take over a server without an owner that is `alike`: the one of this `name` if there is one,
    else another, which takes the name. None where there is none."""
    candidates = [(files, record) for files, record in _records(folder) if record.alike == alike]
    for files, record in sorted(candidates, key=lambda one: one[1].name != name):
        if owned := await _own(files, msgspec.structs.replace(record, name=name)):
            _write(files, owned.record)
            return owned
    return None


async def make_room(folder: Path, name: str, gpus: str) -> None:
    """End servers without an owner that conflict with a new one: those of its name, and those that
    use one of its `gpus`."""
    wanted = set(filter(None, gpus.split(",")))
    await _end_those(
        (files, record)
        for files, record in _records(folder)
        if record.name == name or wanted & set(record.gpus.split(","))
    )


@asynccontextmanager
async def servers_ended(run: Path) -> AsyncIterator[None]:
    """At the end of the block, end the servers of a run on this machine that have no owner."""
    try:
        yield
    finally:
        await _end_those(_records(run / SERVERS))
        list(_records(run / SERVERS))  # removes those that have ended


async def _end_those(servers: Iterator[tuple[Path, ServerRecord]]) -> None:
    async def end_one(files: Path, record: ServerRecord) -> None:
        if owned := await _own(files, record):
            await owned.end()

    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            for files, record in servers:
                nursery.start_soon(end_one, files, record)


def _write(files: Path, record: ServerRecord) -> None:
    path = files / RECORD
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(record))


def _records(folder: Path) -> Iterator[tuple[Path, ServerRecord]]:
    """The servers of a folder, each with its own folder; those that ended are removed."""
    for link in sorted(folder.glob("*")):
        try:
            files = link.readlink()
            state = files.stat()
            if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o077:
                raise FileNotFoundError(f"{files} belongs to another user by now")
            record = msgspec.json.decode((files / RECORD).read_bytes(), type=ServerRecord)
        except (OSError, msgspec.DecodeError):
            link.unlink(missing_ok=True)
            continue
        yield files, record


async def _own(files: Path, record: ServerRecord) -> OwnedServer | None:
    """Take over the server of a folder; None where it has an owner, or has ended."""
    with trio.socket.socket(trio.socket.AF_UNIX) as asking, trio.move_on_after(GREETING_S):
        try:
            await asking.connect(str(files / GUARD))
            if await asking.recv(len(OWNED)) == OWNED:
                return _owned(record, files, socket.socket(fileno=os.dup(asking.fileno())))
        except OSError:
            pass  # it has ended meanwhile
    return None


def _owned(record: ServerRecord, files: Path, guard: socket.socket) -> OwnedServer | None:
    """A server by the connection to its guard; None if the guard is another user's. Raises OSError
    where it has ended."""
    credentials = guard.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
    if user != os.geteuid():
        guard.close()
        return None
    log = Path(record.log)
    process = Process(record.name, pid, partial(_told, guard), log, log.stat().st_size)
    return OwnedServer(record, files, process, guard)


def _told(guard: socket.socket) -> int:
    """The exit status of its command as reported by a guard; that of SIGKILL where it reported
    none."""
    try:
        return int(guard.recv(16))
    except (OSError, ValueError):
        return -signal.SIGKILL
