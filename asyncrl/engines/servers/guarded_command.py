"""`python -m asyncrl.engines.servers.guarded_command FILES OWNER KEEP_S COMMAND…`: run a command
that ends with its owner, and all that it started; or `KEEP_S` seconds later, if nobody owns it
then.

    OWNER: the descriptor of a connection to who started it, and is told "+" → "k" → that is closed
    → KEEP_S seconds in which somebody else may connect at FILES/guard.sock, and is told "+" → …

Invariant: whatever ends its owner, nothing of the command's group is left `LEAVE_S` seconds after
that, or after `KEEP_S`, and none of its files. It has one owner at a time: who connects to one that
is owned is hung up on. An owner that did not say "k" takes the command with it.

Servers' processes ask for a signal at their parent's death, but only when they have imported what
they need: whoever dies in those ten seconds leaves half a gigabyte behind. So this process leads
the session, and does nothing but wait for the command, or for the owner. A command that stands for
something elsewhere, a container say, hears SIGTERM first. Its sockets and metrics are files in
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
"""The word to who owns it now, and an owner's: keep it when I am gone."""
LEAVE_S = 3.0
"""Seconds that the command has to end by itself, once nobody owns it."""


def main() -> None:
    outlive_parent()
    files, owner, keep_s, *command = sys.argv[1:]
    told, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGTERM, lambda *_: None)  # by the pipe below
    signal.set_wakeup_fd(tell)
    connection = socket.socket(fileno=int(owner))
    connection.set_inheritable(False)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(Path(files) / GUARD))
            listener.listen()
            environment = os.environ | {"TMPDIR": files}
            pid = os.posix_spawnp(command[0], command, environment, setpgroup=0)
            guard = _Guard(pid, listener, float(keep_s), told)
            guard.own(connection)
            guard.wait()
        # what is left of its group, whose number is nobody else's until it is reaped
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
    """The wait for the end of the command `pid`, its owner, or the next one. `told` is readable
    when it was asked to end (SIGTERM)."""

    def __init__(self, pid: int, listener: socket.socket, keep_s: float, told: int) -> None:
        self._pid, self._listener, self._keep_s, self._told = pid, listener, keep_s, told
        self._owner: socket.socket | None = None
        self._kept = False
        self._until = 0.0  # it is nobody's until then
        self._ended = os.pidfd_open(pid)

    def own(self, owner: socket.socket) -> None:
        """Have it owned by who is at the other end, and say so there."""
        owner.setblocking(False)
        with contextlib.suppress(OSError):  # one that has hung up is found so
            owner.send(OWNED)
        self._owner = owner

    def wait(self) -> None:
        """Return when the command has ended, or was asked to because nobody owns it."""
        while True:
            waited: list[int | socket.socket] = [self._ended, self._told, self._listener]
            waited += [self._owner] if self._owner else []
            left_s = None if self._owner else max(0.0, self._until - time.monotonic())
            ready, _, _ = select.select(waited, [], [], left_s)
            if self._ended in ready:
                return
            if self._told in ready:
                os.read(self._told, 64)
                self._keep_s = 0.0  # nobody gets what is about to end
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
        """Read all that its owner said: to the end, where that is gone, so that who came after it
        finds the place free."""
        try:
            while owner.recv(len(KEEP)):
                self._kept = True
        except BlockingIOError:
            return
        except OSError:
            pass  # it was reset, which is an end, too
        owner.close()
        self._owner = None
        self._until = time.monotonic() + (self._keep_s if self._kept else 0.0)
        self._kept = False

    def _admit(self) -> None:
        """Have who connects own it, if nobody does."""
        other, _ = self._listener.accept()
        if self._owner is not None:
            other.close()
            return
        self.own(other)

    def _terminate(self) -> None:
        os.kill(self._pid, signal.SIGTERM)  # it is not reaped: the number is its own


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
