"""Forks of a process that has prepared everything: making them, and ending them with all processes
that they started.

`Forks` is the protocol. `Zygote` (`zygote.py`) makes each one a sandbox; `PlainForks` here makes
processes that can be killed, and that are restricted in nothing but new privileges.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

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

    def until_readable(self, descriptor: int) -> None:
        """Wait until there is something to read, and meanwhile kill those whose grace is over."""
        ...

    def end_all(self) -> None:
        """End every fork, and return when they are gone."""
        ...


class PlainForks:
    """Forks of the sandbox `process`, which do not keep the descriptors `close`. A fork
    and what it starts are a process group. A process that left its group and lost its parent
    becomes a child of this process, and is ended with the next fork that ends.

    With `grace_s` the whole group gets SIGTERM first, and SIGKILL when the fork and those of the
    group that are children of this process then have ended, at most so many seconds later. Nothing
    else waits for that, and all graces run together.
    """

    def __init__(self, close: Collection[int], grace_s: float = 0.0) -> None:
        self._close, self._grace_s = close, grace_s
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self._living: set[int] = set()
        self._ending: dict[int, _Grace] = {}

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
        for descriptor in (*self._close, *self._watched()):
            os.close(descriptor)
        return 0

    def end(self, number: int) -> None:
        if number not in self._living or number in self._ending:
            return
        if not self._grace_s:
            self._kill(number)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(number, signal.SIGTERM)
        until = time.monotonic() + self._grace_s
        self._ending[number] = _Grace(until, [os.pidfd_open(number)])

    def end_all(self) -> None:
        for number in list(self._living):
            self.end(number)
        while self._ending:
            self._tend(None)
        self._end_orphans(_all_children)

    def until_readable(self, descriptor: int) -> None:
        while self._ending and not self._tend(descriptor):
            pass

    def _tend(self, descriptor: int | None) -> bool:
        """Wait until `descriptor` can be read, which returns True, until something that was told
        to end has, or a grace is over."""
        poll = select.poll()
        for watched in self._watched():
            poll.register(watched, select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        next_s = min(grace.until for grace in self._ending.values()) - time.monotonic()
        ready = {found for found, _ in poll.poll(max(0.0, 1000 * next_s) + 1)}
        for number, grace in list(self._ending.items()):
            if ready.intersection(grace.watched):
                for ended in ready.intersection(grace.watched):
                    grace.watched.remove(ended)
                    os.close(ended)
                if not grace.watched:
                    grace.watched.extend(self._left_of(number))
            if not grace.watched or time.monotonic() >= grace.until:
                for unended in self._ending.pop(number).watched:
                    os.close(unended)
                self._kill(number)
        return descriptor in ready

    def _left_of(self, number: int) -> list[int]:
        """Descriptors of the children of this process that are in a fork's group, and live."""
        found = list[int]()
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                if pid != number and os.getpgid(pid) == number and not _dead(pid):
                    found.append(os.pidfd_open(pid))
        return found

    def _watched(self) -> list[int]:
        return [watched for grace in self._ending.values() for watched in grace.watched]

    def _kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(number, signal.SIGKILL)
        os.waitpid(number, 0)
        self._living.remove(number)
        self._end_orphans(_children)

    def _end_orphans(self, children: Callable[[], Iterable[int]]) -> None:
        """End children that are not forks, nor in the group of one, and those that become children
        of this process by that."""
        while orphans := [pid for pid in children() if not self._of_fork(pid)]:
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _of_fork(self, pid: int) -> bool:
        """True for a fork that lives, and for what is in its group, which ends with it."""
        if pid in self._living:
            return True
        try:
            return os.getpgid(pid) in self._living
        except ProcessLookupError:
            return False


class _Grace(NamedTuple):
    """The time of a fork that was told to end, and descriptors of the processes that it waits
    for."""

    until: float
    watched: list[int]


def _dead(pid: int) -> bool:
    """True for a process that has ended, and is not reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


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
