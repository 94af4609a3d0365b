"""Children that run code given as text, of a fork server without torch too; and looks at processes
that are no children of a test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from asyncrl.runtime.processes.forkserver import ForkServer, open_fork_server
from asyncrl.runtime.processes.process import Process

SERVER = """\
import sys
from asyncrl.runtime.processes import forkserver

control = forkserver.begin(sys.argv[1:])
{before}
if forkserver.serve(control) is not None:
    exec(sys.argv[1])
"""
ACTOR = "import sys\nexec(sys.argv[1])\n"


BECOME = (
    "from asyncrl.runtime.processes.process import become_child; become_child(); import os, sys, "
    "signal, subprocess, time\n"
)
FOREVER = "signal.pause()"
GRANDCHILD = "p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True)\n"


async def said(process: Process, lines: int) -> list[str]:
    """The child's first lines, once they are there; bounded by real time, because a real process
    writes them."""
    with trio.fail_after(30):
        while (text := process.log.read_text()).count("\n") < lines:
            await trio.lowlevel.checkpoint()
    return text.splitlines()


async def gone(pid: int) -> None:
    """Wait until a process that is no child of ours has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with trio.fail_after(60):
            await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Forking:
    """An open fork server: `start(code)` is what `spawn` is for `python -c`."""

    def __init__(self, server: ForkServer, folder: Path, lost: Sequence[str]) -> None:
        self.server, self._folder = server, folder
        self.lost = lost
        """Word of its end, as the server's owner heard it."""

    def start(self, code: str, **options) -> Process:
        return self.server.start(
            "actor-0", "forked_code", [code], log=self._folder / "log", **options
        )


@asynccontextmanager
async def forking(folder: Path, before: str = "", **env: str) -> AsyncIterator[Forking]:
    """A fork server that runs the code `before` when others import; it is there, or lost, when the
    block begins. Its modules are written to `folder`."""
    (folder / "code_server.py").write_text(SERVER.format(before=before))
    (folder / "forked_code.py").write_text(ACTOR)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONPATH"], old = path, os.environ.get("PYTHONPATH")
    lost: list[str] = []
    try:
        async with open_fork_server(
            "code_server", [], log=folder / "server.log", env=env, lost=lost.append
        ) as server:
            await server.settled()
            yield Forking(server, folder, lost)
    finally:
        if old is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = old
