"""The control socket of a process that forks workers, from the inside."""

from __future__ import annotations

import os
import resource
import socket

import pytest

from asyncrl.actors.worker_process import Start, _next, frame


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
