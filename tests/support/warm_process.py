"""The warm process of a worker of pytest (`warm.py`), and what starts processes by it.

Invariant, as of the product's fork server: it has one thread and computes nothing. A command that
starts processes with torch (`FORKING`) has a warm process of its own, forked with it, of which
these are forked: each fork server (`python -m asyncrl.actors.preloaded` is a child of its launcher,
and leads a session), and each module that a check runs.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn, TextIO

from warm import FIXED, REQUEST_BYTES, fork

from asyncrl.launch import torch_process
from asyncrl.runtime.processes import forkserver
from asyncrl.runtime.processes.process import Process, become_child, environment, spawn, threads_of
from asyncrl.runtime.processes.title import set_title

TITLE_BYTES = 2**13
"""Room for the command line of whatever is forked."""
DESCRIPTORS = 8
"""The streams of what is forked, and the others that it is given, at most."""
PRELOADED = "asyncrl.actors.preloaded"
FORKING = ("train", "agent", "check")
"""Verbs of commands that start such processes."""
PROGRAMS = ("cells",)
"""Modules that call `asyncrl.train`."""
BESIDE = ("asyncrl.training.fitting", "asyncrl.training.trial", "asyncrl.tasks.gym", "tabulate")
"""Modules that checks run, or actors import later, beside those of a fork server."""
_PR_SET_PDEATHSIG = 1


# --------------------------------------------------------------------------------- the test's side


class Warm(NamedTuple):
    """A warm process, by its socket's name, and the variables that it was started with."""

    pid: int
    address: str
    fixed: dict[str, str | None]
    folder: tempfile.TemporaryDirectory[str] | None
    """Of its log; None where another process started it."""

    def fork(self, module: str, words: Sequence[Any], **more: Any) -> int:
        """A process forked from it. Raises RuntimeError with what it said where it has ended."""
        try:
            return fork(self.address, module, [str(word) for word in words], **more)
        except ConnectionError as error:
            said = Path(self.folder.name, "log").read_text() if self.folder else "no word"
            raise RuntimeError(f"the warm process forks nothing: {said}") from error


@cache
def warm() -> Warm:
    """The warm process of this one; it ends with it."""
    address = f"asyncrl-tests-{os.getpid()}"
    folder = tempfile.TemporaryDirectory(prefix="asyncrl-warm-")
    here = Path(__file__)
    paths = [str(here.parent), str(here.parents[2]), os.environ.get("PYTHONPATH", "")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen(64)
        descriptor = str(listener.fileno())
        pid = spawn(
            "the warm process",
            [sys.executable, __file__, descriptor, "." * TITLE_BYTES],
            log=Path(folder.name) / "log",
            env={**threads_of(1), "PYTHONPATH": os.pathsep.join(paths)},
            descriptors=[listener.fileno()],
        ).pid
    return Warm(pid, address, {name: os.environ.get(name) for name in FIXED}, folder)


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` of `python -m MODULE …`: forked from the warm process where it can be."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        (_, _, _, _, folder, env, _, _, _, stdin, _, _, stdout, _, stderr) = rest[:15]
        env = dict(os.environ if env is None else env)
        of_module = list(args[:2]) == [sys.executable, "-m"]
        if not of_module or any(env.get(name) != had for name, had in warm().fixed.items()):
            super()._execute_child(args, *rest)
            return
        streams = [mine if mine >= 0 else n for n, mine in enumerate((stdin, stdout, stderr))]
        try:
            self.pid = warm().fork(
                args[2], args[3:], environment=env, folder=folder, streams=streams
            )
        finally:
            self._close_pipe_fds(*rest[9:15])
        self._child_created = True


def run(
    argv: Sequence[str], *, timeout: float | None = None, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` by such a start."""
    if more.pop("capture_output", False):
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(argv, **more) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(argv, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


# -------------------------------------------------------------------------------- the warm process


def main() -> None:
    """Fork what is asked for until the worker of pytest is gone."""
    become_child()
    listener = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    named = os.environ["PYTHONPATH"].split(os.pathsep)
    installed = [path for path in sys.path if path not in named]
    preloaded = importlib.import_module(PRELOADED)
    for module in (*_of_commands(), *preloaded.MODULES, *preloaded.OF_AGENTS, *BESIDE):
        importlib.import_module(module)
    preloaded.model_class("")
    gc.collect()
    gc.freeze()
    gc.enable()
    set_title(["the-warm-process"])
    _serve(listener, installed)


def _serve(listener: socket.socket, installed: list[str]) -> NoReturn:
    """Fork what is asked for."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # who told an exit code
                pass
        connection, _ = listener.accept()
        text, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES, DESCRIPTORS)
        request = json.loads(text) if text else None
        if request is not None and _forked(connection, request["adopts"]):
            connection.close()
            listener.close()
            _become(request, descriptors, installed)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.close()


def _of_commands() -> set[str]:
    """The modules of asyncrl that its commands import when they are called."""
    found = importlib.util.find_spec("asyncrl.cli")
    assert found is not None and found.origin is not None
    tree = ast.parse(Path(found.origin).read_text())
    named = (node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {module for module in named if module and module.startswith("asyncrl.")}


def _forked(connection: socket.socket, adopts: bool) -> bool:
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
        if not adopts:
            connection.send(str(_reap(child)).encode())
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 64)
    os.close(reading)
    if adopts:
        os.waitpid(middle, 0)  # from here on it is the other side's
        connection.send(said)
    return False


def _become(request: dict[str, Any], streams: list[int], installed: list[str]) -> None:
    """Be `python -m MODULE …`, to its end."""
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.sched_setaffinity(0, request["cores"])
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    module, words = request["module"], request["words"]
    streams, more = streams[:3], streams[3:]
    _renew(request["environment"], streams, installed)
    sys.argv = [module, *words]
    set_title([sys.executable, "-m", *sys.argv])
    if module == PRELOADED:
        os.setsid()
        sys.argv[1] = str(more[0])
        _trace_what_is_compiled()
        sys.modules["__main__"] = sys.modules[PRELOADED]
        _end_with(sys.modules[PRELOADED].main)
    if module in PROGRAMS or (words and words[0] in FORKING):
        _fork_what_it_starts(_of_its_own(installed))
    _end_with(partial(runpy.run_module, module, run_name="__main__", alter_sys=True))


def _end_with(main: Callable[[], object]) -> NoReturn:
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


def _renew(variables: Mapping[str, str], streams: Sequence[int], installed: list[str]) -> None:
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
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _stream(1, sys.stdout), _stream(2, sys.stderr)


def _stream(number: int, like: TextIO) -> io.TextIOWrapper:
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


def _of_its_own(installed: list[str]) -> Warm:
    """A warm process that is a child of this one, and ends with it: what it forks can be adopted
    here."""
    address = f"asyncrl-tests-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen(64)
        if not (pid := os.fork()):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.setsid()
            set_title(["the-warm-process-of-a-command"])
            with open(os.devnull, "r+b", buffering=0) as nothing:  # noqa: PTH123
                for stream in (0, 1, 2):
                    os.dup2(nothing.fileno(), stream)
            _serve(listener, installed)
    return Warm(pid, address, {name: os.environ.get(name) for name in FIXED}, None)


def _fork_what_it_starts(known: Warm) -> None:
    """Have this command's fork servers, and the modules that its checks run, forked likewise."""
    globals()["warm"] = lambda: known
    torch_process.subprocess = SimpleNamespace(run=run)  # type: ignore[assignment]

    def start(
        name: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str], **more: Any
    ) -> Process:
        if argv[2] != PRELOADED:
            return spawn(name, argv, log=log, env=env, **more)
        with log.open("ab") as file, open(os.devnull) as nothing:  # noqa: PTH123
            begins = file.tell()
            streams = [nothing.fileno(), file.fileno(), file.fileno(), *more["descriptors"]]
            variables = environment(None, env)
            pid = known.fork(PRELOADED, argv[3:], environment=variables, streams=streams)
        return Process(name, pid, partial(_reap, pid), log, begins)

    forkserver.spawn = start  # type: ignore[assignment]


def _reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _trace_what_is_compiled() -> None:
    """Have an engine with `engine.compile = false` run the modules themselves, as it does where a
    trace does not agree with the model: tracing takes two core seconds, and a short run a few
    steps."""
    programs = importlib.import_module("asyncrl.engines.embedded.programs")
    traced, opened = programs._traced, programs.Programs.__init__

    def open_programs(self: Any, *given: Any, compile: bool, **more: Any) -> None:
        programs._traced = traced if compile else lambda step, _: step
        opened(self, *given, compile=compile, **more)

    programs.Programs.__init__ = open_programs


if __name__ == "__main__":
    main()
