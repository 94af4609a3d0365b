"""A function of foreign bytes, such as a chat template or the decoder of an image, in a process of
its own. Invariant: each call returns or raises, and costs at most SECONDS of a core and BYTES of
memory, whatever it does.

A template is foreign code. The sandbox of Jinja keeps it from Python, but not from one operation
that takes hours and holds the interpreter, such as `10 ** 10 ** 9`: the kernel alone ends that. A
decoder is C code that reads what a stranger wrote: its process is also `confined`, so that it opens
no file and no connection, and starts no program. The process is a fork, which has imported what it
needs; it holds no file of its parent, and ends with it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import resource
import signal
import socket
import struct
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from asyncrl.runtime.processes.title import set_title
from asyncrl.sandbox import landlock, seccomp, syscalls

SECONDS = 2.0
"""Seconds of a core for one call; the longest conversations take a tenth of one."""
BYTES = 2**29
"""Bytes of memory that a call may take beside what the process has at first."""
ENDS = 3
"""Processes that a function may cost, before none is started any more."""
_WAIT_S = 120.0
"""Seconds to wait for SECONDS of a core on a busy machine."""
_SIZE = struct.Struct("<?Q")
"""True for a result, false for an error; and its number of bytes."""


class CallFailed(Exception):
    """The function cannot do what it was asked; the message says why."""


class CallEnded(CallFailed):
    """The process of the function ended; the message says why."""


class ForeignProcess:
    """Calls of a function of bytes. May be used by several threads, and in forks of the process
    that made it.

    >>> ForeignProcess(bytes.upper).call(b"abc")
    b'ABC'
    """

    def __init__(
        self,
        function: Callable[[bytes], bytes],
        *,
        confined: bool = False,
        ends: int = ENDS,
    ) -> None:
        """After so many `ends` of its process no call is answered."""
        self._function, self._confined, self._most = function, confined, ends
        self._turn = threading.Lock()
        self._child: _Child | None = None
        self._finish: Callable[[], str | None] = lambda: ""
        self._ends, self._why = 0, ""

    def call(self, asked: bytes) -> bytes:
        """Call the function in its process. Raises CallFailed."""
        with self._turn:
            if self._ends >= self._most:
                raise CallEnded(self._why)
            if self._child is None or self._child.owner != os.getpid():
                self._child = _start(self._function, self._confined)
                # once for each: the number of one that has ended may be that of another process
                self._finish = weakref.finalize(self, _end, self._child)
            try:
                good, data = _answer(self._child.link, asked)
            except (OSError, EOFError) as error:
                self._ends, self._why = self._ends + 1, self._finish() or ""
                if isinstance(error, TimeoutError):
                    self._why = f"there is no answer of it in {_WAIT_S:g} s"
                self._child = None
                raise CallEnded(self._why) from error
        if not good:
            raise CallFailed(data.decode())
        return data


class _Child(NamedTuple):
    owner: int
    pid: int
    link: socket.socket


def _start(function: Callable[[bytes], bytes], confined: bool) -> _Child:
    ours, theirs = socket.socketpair()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # others hold nothing it needs
            pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if not pid:
        _be_child(function, theirs.detach(), confined)
    theirs.close()
    ours.settimeout(_WAIT_S)
    return _Child(os.getpid(), pid, ours)


def _end(child: _Child) -> str:
    """End a process of this one; does nothing for one of another. Returns in words why it ended."""
    child.link.close()
    if child.owner != os.getpid():
        return ""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)  # no harm to one that has ended
    status = 0
    with contextlib.suppress(ChildProcessError):  # one that reaps every child was first
        status = os.waitpid(child.pid, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return f"it computes for more than {SECONDS:g} s"
    return "it ended its process"


def _answer(link: socket.socket, asked: bytes) -> tuple[bool, bytes]:
    """The answer of the process to a request. Raises OSError, and EOFError if it ended."""
    link.sendall(_SIZE.pack(True, len(asked)) + asked)
    good, size = _SIZE.unpack(_read(link, _SIZE.size))
    return good, _read(link, size)


def _read(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (piece := link.recv(min(size - len(data), 2**20))):
            raise EOFError
        data += piece
    return bytes(data)


def error_line(error: BaseException) -> str:
    """The first line of an error, or what its kind says."""
    if said := str(error).strip().partition("\n")[0]:
        return said
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    return type(error).__name__


# ------------------------------------------------------------------------------------ the process


def _be_child(function: Callable[[bytes], bytes], descriptor: int, confined: bool) -> None:
    """Answer until the parent is gone; never returns."""
    try:
        _be_alone(descriptor)
        if confined and sys.platform == "linux":
            _confine()
        with socket.socket(fileno=descriptor) as link:
            while True:
                size = _SIZE.unpack(_read(link, _SIZE.size))[1]
                asked = _read(link, size)
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                good, data = _result(function, asked)
                signal.setitimer(signal.ITIMER_PROF, 0)
                link.sendall(_SIZE.pack(good, len(data)))
                link.sendall(data)
    except BaseException:  # noqa: BLE001 a fork never runs what its parent would
        pass
    finally:
        os._exit(0)


def _result(function: Callable[[bytes], bytes], asked: bytes) -> tuple[bool, bytes]:
    """The result, or the error in words."""
    try:
        return True, function(asked)
    except Exception as error:  # noqa: BLE001 it is foreign code, and may raise anything
        return False, error_line(error)[:2000].encode(errors="replace")


def _confine() -> None:
    """Open no file and start no program from here on, and make none of the system calls that the
    sandbox denies. Raises OSError where the kernel refuses; one without Landlock has system calls
    denied alone."""
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    if version := landlock.version():
        rules = landlock.ruleset(version, {}, ())
        landlock.restrict(rules)
        os.close(rules)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    seccomp.install(seccomp.program(platform.machine()))


def _be_alone(descriptor: int) -> None:
    """Keep no other file, no handler of a signal, no name of the parent's, and no more memory than
    a call may take."""
    with contextlib.suppress(OSError):  # a system without /proc
        set_title([sys.executable, "-m", __name__])
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGPROF, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's, which ends this with itself
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.closerange(0, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.freeze()
    with contextlib.suppress(OSError, ValueError):  # a system without /proc
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = pages * resource.getpagesize() + BYTES
        if soft == resource.RLIM_INFINITY or most < soft:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
