"""Forks of a process that has prepared everything: making them, and ending them with all processes
that they started.

`Forks` is the protocol. `Zygote` (`zygote.py`) makes each one a sandbox; `PlainForks` here makes
processes that can be killed, and that are restricted in nothing but new privileges.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from asyncrl.sandbox import syscalls


class Forks(Protocol):
    """Makes forks of this process, which has one thread. None outlives it."""

    def fork(self, keep: int, *, lasting: bool = False) -> int:
        """Fork. Returns 0 in the child, which keeps the descriptor `keep`, and in the parent a
        number by which to end it. A `lasting` child has no limit of seconds of a core. A child
        whose setup fails ends. Raises OSError."""
        ...

    def end(self, number: int) -> None:
        """End a fork and all that it started; does nothing for another number."""
        ...

    def end_all(self) -> None:
        """End every fork, and return when they are gone."""
        ...


class PlainForks:
    """Forks of the sandbox `process`, which do not keep the descriptors `close`. A fork
    and what it starts are a process group. A process that left its group and lost its parent
    becomes a child of this process, and is ended with the next fork that ends."""

    def __init__(self, close: Collection[int]) -> None:
        self._close = close
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self._living: set[int] = set()

    def fork(self, keep: int, *, lasting: bool = False) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._living.add(pid)
            with contextlib.suppress(PermissionError):  # the child has done it itself
                os.setpgid(pid, pid)
            return pid
        os.setpgid(0, 0)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
        for descriptor in self._close:
            os.close(descriptor)
        return 0

    def end(self, number: int) -> None:
        if number in self._living:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(number, signal.SIGKILL)
            os.waitpid(number, 0)
            self._living.remove(number)
            self._end_orphans(_children)

    def end_all(self) -> None:
        for number in list(self._living):
            self.end(number)
        self._end_orphans(_all_children)

    def _end_orphans(self, children: Callable[[], Iterable[int]]) -> None:
        """End children that are not forks, and those that become children of this process by
        that."""
        while orphans := [pid for pid in children() if pid not in self._living]:
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> Iterable[int]:
    """The children of this process, also those that wait to be reaped. If one ends meanwhile, the
    kernel may leave out another, which the next call returns."""
    pid = os.getpid()
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:  # a kernel without the list
        return _all_children()


def _all_children() -> Iterator[int]:
    """The children of this process, with none left out. It reads every process of the machine,
    which may be thousands."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = (entry / "stat").read_text(errors="replace")
                if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                    yield int(entry.name)
