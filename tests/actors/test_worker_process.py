"""The control socket of a process that forks workers, from the inside."""

from __future__ import annotations

import os
import resource
import socket

import pytest
import trio

from asyncrl.actors import worker_forks
from asyncrl.actors.worker_forks import WorkerForks, WorkersLost, open_forks
from asyncrl.actors.worker_process import Start, _next, frame
from asyncrl.runtime.ipc.waits import Waits


def open_files() -> set[str]:
    return {entry.name for entry in os.scandir("/proc/self/fd")}


async def test_a_worker_that_cannot_be_started_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does a process that forks them; a socket is closed when its start fails, and not when the
    error is collected."""
    ours, theirs = socket.socketpair()
    theirs.close()
    async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as control:
        before = open_files()
        with pytest.raises(WorkersLost) as lost:
            await WorkerForks(control, Waits(), "verifiers").start()
        assert open_files() == before and lost.value.args

    async def full(*_: object, **__: object) -> None:
        raise OSError("no process is free")

    monkeypatch.setattr(worker_forks.trio.lowlevel, "open_process", full)
    before = open_files()
    with pytest.raises(OSError, match="no process") as failed:
        async with open_forks("module", Waits(), "verifiers", {}):
            pass
    assert open_files() == before and failed.value.args


def test_a_socket_that_cannot_be_taken_is_said_and_not_left_out() -> None:
    """A process without a free descriptor gets the frame of a start, and not its socket."""
    ours, theirs = socket.socketpair()
    worker, other = socket.socketpair()
    with ours, theirs, worker, other:
        socket.send_fds(ours, [frame(Start(lasting=True))], [worker.fileno()])
        found = _next(theirs)
        assert isinstance(found, tuple)
        (sockets, lasting) = found
        assert lasting and len(sockets) == 1
        sockets[0].close()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        socket.send_fds(ours, [frame(Start(lasting=True))], [worker.fileno()])
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            with pytest.raises(OSError, match="no descriptor is free"):
                _next(theirs)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
