"""The zygote: a process in a sandbox that has imported what is needed, and forks a sandbox of its
own for each piece of work. Linux alone.

    starter ── fork ──▶ zygote ── fork ──▶ worker, worker, …
      │                   │                  │
      │                   │                  └─ user and process namespaces of its own, an empty
      │                   │                     /tmp and /dev/shm, limits, Landlock, denied system
      │                   │                     calls, no capability, no new privileges
      │                   └─ no network, no IPC, and no files but Python's (`view.py`)
      └─ waits, and ends with it

Invariant: the zygote runs nothing that came from outside, so all workers start alike. The one
descriptor that a worker shares with another process is the one it keeps: files are opened again for
it, read-only. It is the first process of its process namespace: when it ends, all
that it started ends, in whatever session. It cannot see or signal the zygote or another worker.

The zygote needs no privilege. If it is root nevertheless, its workers run as `nobody`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import signal
import stat
import traceback
from collections.abc import Collection
from errno import EINVAL
from pathlib import Path

import msgspec

from asyncrl.sandbox import landlock, seccomp, syscalls, view
from asyncrl.sandbox.limits import Limits
from asyncrl.sandbox.view import DEVICES, SCRATCH, SHELF, View, python_view

NOBODY = 65534
_ROOM = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
_CAP_SYS_ADMIN = 21


class Zygote:
    """The `Forks` of the sandbox `strict`. Made by `enter`."""

    def __init__(
        self, limits: Limits, quiet: bool, proc: int, files: dict[int, str], seen: View
    ) -> None:
        self._limits = limits
        self._quiet = quiet
        self._proc = proc
        self._files = files
        self._home = os.open("self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        self._privileged = _privileged(proc)
        self._inherited = _address_space(proc)
        self._denied = seccomp.program(platform.machine())
        self.landlock = landlock.version()
        """The version of Landlock that this kernel has; 0 for none."""
        self._rules = self._ruleset(seen) if self.landlock else None
        self._living: set[int] = set()
        self._ending: set[int] = set()

    @classmethod
    def enter(cls, limits: Limits, *, keep: Collection[int], quiet: bool) -> Zygote:
        """Return in a fork of this process, which is the zygote; this process itself closes the
        descriptors `keep`, waits for it, and ends as it does.

        Forks keep files that are open for reading, under their descriptors, and nothing else that
        is open, with `quiet` not even standard output and standard error. This process must have
        one thread. Raises OSError if the kernel refuses.
        """
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        paths = _readable({*keep, proc})
        files = {descriptor: f"/open/{descriptor}" for descriptor in paths}
        seen = python_view({files[descriptor]: path for descriptor, path in paths.items()})
        flags = _ROOM | syscalls.CLONE_NEWPID
        if _privileged(proc):
            syscalls.unshare(flags)
        else:
            user, group = os.geteuid(), os.getegid()
            syscalls.unshare(flags | syscalls.CLONE_NEWUSER)
            _stay(proc, user, group)
        if pid := os.fork():
            for descriptor in keep:
                os.close(descriptor)
            os._exit(_end_of(pid))
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        view.enter(seen)
        return cls(limits, quiet, proc, files, seen)

    def fork(self, keep: int, *, lasting: bool = False) -> int:
        self._reap()
        syscalls.unshare(syscalls.CLONE_NEWPID)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid:
                syscalls.setns(self._home, syscalls.CLONE_NEWPID)
        if pid:
            self._living.add(pid)
            return pid
        try:
            limits = self._limits
            self._confine(keep, msgspec.structs.replace(limits, cpu_s=0) if lasting else limits)
        except BaseException:  # noqa: BLE001 (nothing is judged outside)
            traceback.print_exc()
            os._exit(1)
        return 0

    def end(self, number: int) -> None:
        """End a fork. It is gone soon, and its number is not used again before that."""
        if number in self._living:
            os.kill(number, signal.SIGKILL)
            self._living.remove(number)
            self._ending.add(number)
        self._reap()

    def until_readable(self, descriptor: int) -> None:
        return  # no fork has a grace

    def end_all(self) -> None:
        for number in list(self._living):
            self.end(number)
        for number in self._ending:
            os.waitpid(number, 0)
        self._ending.clear()

    def _reap(self) -> None:
        self._ending = {pid for pid in self._ending if not os.waitpid(pid, os.WNOHANG)[0]}

    def _confine(self, keep: int, limits: Limits) -> None:
        """Make this process, a fork of the zygote, a sandbox. Raises OSError."""
        if self._quiet:
            os.setsid()  # so that a scheduler that is fair to sessions is fair to answers
        else:
            os.setpgid(0, 0)
        _write(self._proc, "self/oom_score_adj", "1000")  # killed before a trainer is
        self._open_again()
        if self._privileged:
            _become_nobody()
        user, group = os.geteuid(), os.getegid()
        room = syscalls.CLONE_NEWNS if self._limits.scratch_bytes else 0
        syscalls.unshare(syscalls.CLONE_NEWUSER | room)
        _stay(self._proc, user, group)
        if room:
            view.scratch(self._limits.scratch_bytes)
        os.environ.update(HOME=SCRATCH, TMPDIR=SCRATCH)
        os.chdir(SCRATCH)
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        if self._rules is not None:
            landlock.restrict(self._rules)
        _close_others({0, 1, 2, keep, *self._files})
        limits.apply(self._inherited)
        syscalls.drop_capabilities()
        seccomp.install(self._denied)
        if self._quiet:
            with open(DEVICES[0], "wb") as nothing:  # noqa: PTH123
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)

    def _ruleset(self, seen: View) -> int:
        paths = dict.fromkeys(seen.readable, landlock.READ)
        devices = {path: landlock.DEVICE for path in DEVICES if Path(path).exists()}
        return landlock.ruleset(
            self.landlock, paths | devices, [SHELF] if self._limits.scratch_bytes else []
        )

    def _open_again(self) -> None:
        """Replace descriptors by ones that no other process has: a change of their flags, their
        position or their file's mode affects this sandbox alone."""
        for descriptor, path in {0: DEVICES[0], **self._files}.items():
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if descriptor > 2:
                os.lseek(opened, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(opened, descriptor, inheritable=descriptor <= 2)
            os.close(opened)


def _become_nobody() -> None:
    """Stop being root; if `nobody` is not in this user namespace, root is an ordinary user."""
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError as error:
        if error.errno != EINVAL:
            raise
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else it does not own its /proc


def _readable(known: Collection[int]) -> dict[int, str]:
    """Descriptors of the regular files that are open for reading, and where they are."""
    paths = {}
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        if descriptor > 2 and descriptor not in known:
            with contextlib.suppress(OSError):  # the listing itself, and files that were removed
                path, mine = str(entry.readlink()), os.fstat(descriptor)
                reads = _flags(descriptor) & os.O_ACCMODE == os.O_RDONLY
                there = stat.S_ISREG(mine.st_mode) and os.path.samestat(mine, Path(path).stat())
                if reads and there:
                    paths[descriptor] = path
    return paths


def _flags(descriptor: int) -> int:
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    return int(text.split("flags:")[1].split()[0], 8)


def _close_others(kept: Collection[int]) -> None:
    """Close every descriptor that is not kept."""
    first = 0
    for descriptor in (*sorted(kept), resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        if first < descriptor:  # an empty range closes everything, in Python 3.11
            os.closerange(first, descriptor)
        first = descriptor + 1


def _stay(proc: int, user: int, group: int) -> None:
    """Be the same user and group in the user namespace that was just made. No other process is in
    it."""
    _write(proc, "self/setgroups", "deny")
    _write(proc, "self/uid_map", f"{user} {user} 1")
    _write(proc, "self/gid_map", f"{group} {group} 1")


def _privileged(proc: int) -> bool:
    """True if this process may make namespaces without one of users."""
    text = _read(proc, "self/status").split("CapEff:")[1].split()[0]
    return bool(int(text, 16) >> _CAP_SYS_ADMIN & 1)


def _address_space(proc: int) -> int:
    """Bytes of this process's address space."""
    return int(_read(proc, "self/statm").split()[0]) * resource.getpagesize()


def _read(proc: int, name: str) -> str:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)) as file:  # noqa: PTH123
        return file.read()


def _write(proc: int, name: str, text: str) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _end_of(pid: int) -> int:
    """Exit code with which to end when the process `pid`, a child, has ended."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 1
