"""`python -m asyncrl.engines.servers.guarded_command COMMAND…`: run a command that ends with its
parent, and all that it started. Invariant: however the process that started this one ends, nothing
of the command's group is left `LEAVE_S` seconds later, and none of its temporary files.

Servers' processes ask for a signal at their parent's death, but only when they have imported what
they need: whoever dies in those ten seconds leaves half a gigabyte behind. So this process leads
the session, and does nothing but wait for the command or for its own parent to end. A command that
stands for something elsewhere, a container say, hears SIGTERM first. Its sockets and metrics are
files in `TMPDIR`, and nobody else's.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile

from asyncrl.processes.process import become_child

LEAVE_S = 3.0
"""Seconds that the command has to end by itself, once the parent is gone."""
_WAITED = {signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD}


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    become_child(signal.SIGHUP)
    command = sys.argv[1:]
    files = tempfile.mkdtemp(prefix="asyncrl-")
    try:
        pid = os.posix_spawnp(
            command[0], command, os.environ | {"TMPDIR": files}, setpgroup=0, setsigmask=()
        )
        _wait(pid)
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
    _end_as(os.waitstatus_to_exitcode(status))


def _wait(pid: int) -> None:
    """Wait until the command has ended, or has been asked to because the parent has."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        match signal.sigwait(_WAITED):
            case signal.SIGTERM:
                os.kill(pid, signal.SIGTERM)
            case signal.SIGHUP:
                os.kill(pid, signal.SIGTERM)
                signal.sigtimedwait({signal.SIGCHLD}, LEAVE_S)
                return


def _end_as(code: int) -> None:
    """End as the command did (below 0: by this signal). The parent ends what it left of the
    session."""
    if code < 0 and -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    if code < 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
