"""The side of a warm process (`warm.py`) that forks, of the standard library alone; and a warm
process of another Python that has imported these modules, such as one with the package `verifiers`:

    python warm_server.py FD PADDING MODULE …
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TextIO

from warm import REQUEST_BYTES

from asyncrl.runtime.processes.title import set_title

TITLE_BYTES = 2**13
"""Room for the command line of whatever is forked."""
DESCRIPTORS = 8
"""The streams of what is forked, and the others that it is given, at most."""
PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000

Special = Callable[[str, Sequence[str], Sequence[int]], None]
"""Does what modules of its own need before they run, or runs them to their end: called in the child
with the module, its words, and the descriptors beside its streams."""


def main() -> None:
    """Fork what is asked for until the worker of pytest is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    gc.disable()
    installed = not_named()
    for module in sys.argv[3:]:
        importlib.import_module(module)
    freeze()
    set_title(["a-warm-process-of-another-python"])
    serve(socket.socket(fileno=int(sys.argv[1])), installed, bound=True)


def not_named() -> list[str]:
    """The folders of modules that PYTHONPATH does not name."""
    named = os.environ["PYTHONPATH"].split(os.pathsep)
    return [path for path in sys.path if path not in named]


def freeze() -> None:
    """Have the collector leave alone, and so not copy, what forks share."""
    gc.collect()
    gc.freeze()
    gc.enable()


def serve(
    listener: socket.socket,
    installed: list[str],
    special: Special = lambda *_: None,
    *,
    bound: bool = False,
) -> NoReturn:
    """Fork what is asked for. What is `bound` ends with who waits for its exit code."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # who told an exit code
                pass
        connection, _ = listener.accept()
        text, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES, DESCRIPTORS)
        request = json.loads(text) if text else None
        if request is not None:
            request["bound"] = bound and not request["adopts"]
        if request is not None and forked(connection, request["adopts"], request["bound"]):
            connection.close()
            listener.close()
            become(request, descriptors, installed, special)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.close()


def forked(connection: socket.socket, adopts: bool, bound: bool) -> bool:
    """True in the child. The other side `adopts` it, and hears its process id then; or else hears
    its exit code when it has ended."""
    reading, writing = os.pipe()
    if not (middle := os.fork()):
        os.close(reading)
        between = os.pidfd_open(os.getpid())
        child = os.fork()
        if adopts and child:
            os.write(writing, str(child).encode())
        os.close(writing)
        if not child:
            if adopts:  # it has its new parent when the middle process has ended
                select.select([between], [], [])
            os.close(between)
            return True
        if bound:
            end_with_client(child, connection)
        if not adopts:
            connection.send(str(reap(child)).encode())
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 64)
    os.close(reading)
    if adopts:
        os.waitpid(middle, 0)  # from here on it is the other side's
        connection.send(said)
    return False


def end_with_client(child: int, connection: socket.socket) -> None:
    """Return when the child has ended; kill it when the other side has."""
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(child, signal.SIGKILL)
        reap(child)
        os._exit(0)


def become(
    request: dict[str, Any], streams: list[int], installed: list[str], special: Special
) -> None:
    """Be `python -m MODULE …`, to its end."""
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.sched_setaffinity(0, request["cores"])
    if request["network"]:
        enter(request["network"])
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    module, words = request["module"], request["words"]
    streams, more = streams[:3], streams[3:]
    renew(request["environment"], streams, installed)
    if request["bound"]:
        bind()
    sys.argv = [module, *words]
    set_title([sys.executable, "-m", *sys.argv])
    special(module, words, more)
    end_with(partial(runpy.run_module, module, run_name="__main__", alter_sys=True))


def bind() -> None:
    """Lead a session that ends with its parent: whatever is forked here ends with who forked it."""
    os.setsid()
    prctl = ctypes.CDLL(None).prctl

    def end_with_parent() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    end_with_parent()
    os.register_at_fork(after_in_child=end_with_parent)


def enter(network: str) -> None:
    """Enter a network namespace, as nsenter(1) does."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(network, os.O_RDONLY)
    if libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {network}")
    os.close(descriptor)


def end_with(main: Callable[[], object]) -> NoReturn:
    """End the process as `main` does, with what was registered for its end; but do not take what
    was imported apart, which takes half a second."""
    code: Any = None
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 Python's own end says it
        sys.excepthook(*sys.exc_info())
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit((code or 0) & 0xFF)


def renew(variables: Mapping[str, str], streams: Sequence[int], installed: list[str]) -> None:
    """Have these variables, and what Python makes of them at its start, and these streams."""
    os.environ.clear()
    os.environ.update(variables)
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    here = [] if os.environ.get("PYTHONSAFEPATH") else [os.getcwd()]  # noqa: PTH109
    sys.path[:] = [*here, *(os.path.abspath(path) for path in named), *installed]  # noqa: PTH100
    importlib.invalidate_caches()
    for place, descriptor in enumerate(streams):
        os.dup2(descriptor, place)
    for descriptor in {*streams} - {0, 1, 2}:
        os.close(descriptor)
    tempfile.tempdir = None  # of TMPDIR
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = stream(1, sys.stdout), stream(2, sys.stderr)


def stream(number: int, like: TextIO) -> io.TextIOWrapper:
    """Standard output or error as Python opens it at its start."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),  # type: ignore[arg-type]
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=number == 2 or os.isatty(number),
        write_through=unbuffered,
    )


def reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    main()
