"""`python -m asyncrl.engines.sglang.child COMMAND…`: run a command that ends with its parent, and all that it started. Invariant: however
the process that started this one ends, nothing of the command's group is left `LEAVE_S` seconds later.

SGLang's processes ask for a signal at their parent's death, but only when they have imported what they need: whoever dies in those ten
seconds leaves half a gigabyte behind. So this process leads the session, and does nothing but wait for the command or for its own parent to
end. A command that stands for something elsewhere, a container say, hears SIGTERM first.
"""

from __future__ import annotations

import os
import signal
import sys

from asyncrl.process import become_child

LEAVE_S = 3.0
"""Seconds that the command has to end by itself, once the parent is gone."""
_WAITED = {signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD}


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    become_child(signal.SIGHUP)
    command = sys.argv[1:]
    try:
        pid = os.posix_spawnp(command[0], command, os.environ, setsigmask=())
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}; engine.sglang.launch is the command of a Python that has SGLang")
    _end_as(_status(pid))


def _status(pid: int) -> int:
    """The command's exit code, once it has ended; below 0 where a signal ended it. Does not return where the parent ends first."""
    while True:
        match signal.sigwait(_WAITED):
            case signal.SIGTERM:
                os.kill(pid, signal.SIGTERM)
            case signal.SIGHUP:
                os.kill(pid, signal.SIGTERM)
                signal.sigtimedwait({signal.SIGCHLD}, LEAVE_S)
                os.killpg(0, signal.SIGKILL)
            case _:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    return os.waitstatus_to_exitcode(status)


def _end_as(code: int) -> None:
    """As the command did; the parent ends what it left."""
    if code < 0 and -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    if code < 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
