"""`python -m asyncrl.engines.servers.guarded_command FILES OWNER KEEP_S COMMAND…`: run a command
that ends with its owner, and with it all that it started; or `KEEP_S` seconds later, if it has no
owner then.

    OWNER: the descriptor of a connection to who started it, and is told "+" → "k" → that is closed
    → KEEP_S seconds in which another owner may connect at FILES/guard.sock, and is told "+" → …

Invariant: however its owner ends, no process of the command's group and none of its files is left
`LEAVE_S` seconds after that, or after `KEEP_S`. It has one owner at a time: it closes the
connection of a second one. If an owner ends without having sent "k", the command ends too.

Servers' processes ask for a signal at their parent's death, but only after their imports: a parent
that dies in those ten seconds leaves half a gigabyte of memory in use. So this process leads the
session, and only waits for the command, or for the owner. SIGTERM comes first, for a command that
is the client of something elsewhere, such as a container. Its sockets and metrics are files in
FILES, a folder of this user alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

from asyncrl.runtime.processes.process import outlive_parent

GUARD = "guard.sock"
"""The socket at which it waits for an owner, in FILES."""
OWNED, KEEP = b"+", b"k"
"""The guard's message to a new owner, and an owner's message that the command outlives it."""
LEAVE_S = 3.0
"""Seconds that the command gets to end by itself, once it has no owner."""


def main() -> None:
    outlive_parent()
    files, owner, keep_s, *command = sys.argv[1:]
    stop_requested, request_stop = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGTERM, lambda *_: None)  # by the pipe below
    signal.set_wakeup_fd(request_stop)
    connection = socket.socket(fileno=int(owner))
    connection.set_inheritable(False)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(Path(files) / GUARD))
            listener.listen()
            environment = os.environ | {"TMPDIR": files}
            pid = os.posix_spawnp(command[0], command, environment, setpgroup=0)
            guard = _Guard(pid, listener, float(keep_s), stop_requested)
            guard.own(connection)
            guard.wait()
        # the rest of its group, whose number is not reused until it is reaped
        os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    except OSError as error:
        sys.exit(
            f"{command[0]} cannot be started: {error.strerror}; engine.*.launch is the "
            "command of a Python that has the server"
        )
    finally:
        shutil.rmtree(files, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    guard.say(code)
    _end_as(code)


class _Guard:
    """Waits for the end of the command `pid`, for its owner, or for the next one. `stop_requested`
    is readable after SIGTERM."""

    def __init__(
        self, pid: int, listener: socket.socket, keep_s: float, stop_requested: int
    ) -> None:
        self._pid, self._listener, self._keep_s, self._stop_requested = (
            pid,
            listener,
            keep_s,
            stop_requested,
        )
        self._owner: socket.socket | None = None
        self._kept = False
        self._until = 0.0  # without an owner, it lives until then
        self._ended = os.pidfd_open(pid)

    def own(self, owner: socket.socket) -> None:
        """Make the other end of the connection the owner, and tell it so."""
        owner.setblocking(False)
        with contextlib.suppress(OSError):  # a closed connection is noticed by `wait`
            owner.send(OWNED)
        self._owner = owner

    def wait(self) -> None:
        """Return when the command has ended, or was told to end because it has no owner."""
        while True:
            waited: list[int | socket.socket] = [self._ended, self._stop_requested, self._listener]
            waited += [self._owner] if self._owner else []
            left_s = None if self._owner else max(0.0, self._until - time.monotonic())
            ready, _, _ = select.select(waited, [], [], left_s)
            if self._ended in ready:
                return
            if self._stop_requested in ready:
                os.read(self._stop_requested, 64)
                self._keep_s = 0.0  # a command that is ending gets no new owner
                self._terminate()
            if self._owner in ready:
                self._hear(self._owner)
            if self._listener in ready:
                self._admit()
            if self._owner is None and time.monotonic() >= self._until:
                self._terminate()
                select.select([self._ended], [], [], LEAVE_S)
                return

    def say(self, code: int) -> None:
        """Tell the owner how the command ended."""
        if self._owner:
            with contextlib.suppress(OSError):
                self._owner.send(str(code).encode())

    def _hear(self, owner: socket.socket) -> None:
        """Read all messages of the owner, and release its ownership where the connection has ended,
        so that the next one can connect."""
        try:
            while owner.recv(len(KEEP)):
                self._kept = True
        except BlockingIOError:
            return
        except OSError:
            pass  # a reset ends the connection, too
        owner.close()
        self._owner = None
        self._until = time.monotonic() + (self._keep_s if self._kept else 0.0)
        self._kept = False

    def _admit(self) -> None:
        """Accept a connection as the owner, if there is none."""
        other, _ = self._listener.accept()
        if self._owner is not None:
            other.close()
            return
        self.own(other)

    def _terminate(self) -> None:
        os.kill(self._pid, signal.SIGTERM)  # it is not reaped: the number is still its own


def _end_as(code: int) -> None:
    """End as the command did (below 0: by this signal). Its parent, if it lives, ends what is left
    of the session."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
