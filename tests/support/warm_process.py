"""The warm process of a worker of pytest (`warm.py`), and what starts processes by it.

Invariant, as of the product's fork server: it has one thread and computes nothing. A command that
starts processes with torch (`FORKING`) has a warm process of its own, forked with it, of which
these are forked: each fork server (`python -m asyncrl.actors.preloaded` is a child of its launcher,
and leads a session), each actor that no fork server forks (the coordinator is started before the
server is ready), and each module that a check runs. So has an actor that starts a nursery process
(`NURSERIES`), of which that is forked. The workers of pytest are forked of one of their session
(`WORKER`), with a warm process each likewise.
"""

from __future__ import annotations

import ast
import atexit
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import trio
from warm import FIXED, fork
from warm_server import PR_SET_PDEATHSIG, TITLE_BYTES, end_with, freeze, not_named, reap, serve

from asyncrl.actors import worker_forks
from asyncrl.config.schema.section import Section, table_of
from asyncrl.launch import game_launcher, torch_process
from asyncrl.own_folder import own_folder
from asyncrl.runtime.processes import forkserver
from asyncrl.runtime.processes.process import Process, become_child, environment, spawn, threads_of
from asyncrl.runtime.processes.title import set_title

PRELOADED = "asyncrl.actors.preloaded"
ACTOR = "asyncrl.actors"
NURSERIES = {
    "reward": "asyncrl.actors.verifier_process",
    "agents": "asyncrl.actors.agent_process",
}
"""The modules of the processes that fork workers (`worker_forks.py`), by the role of their actor:
they import for most of a second, which is half of what a run of two steps costs."""
FORKING = ("train", "sft", "agent", "check")
"""Verbs of commands that start such processes."""
PROGRAMS = ("cells",)
"""Modules that call `asyncrl.train`."""
WORKER, SERVER = "a-worker-of-pytest", "a-fork-server-of-multiprocessing"
"""In place of modules: the last word is code, as of `python -c`. The words before it are the
numbers that the descriptors of a server have there."""
BESIDE = (
    torch_process.TIED,
    "asyncrl.training.fitting",
    "asyncrl.training.trial",
    "asyncrl.tasks.gym",
    "tabulate",
)
"""Modules that checks run, or actors import later, beside those of a fork server."""
OF_TESTS = ("openai", "peft")
"""Modules that tests import, beside those, and that take most of a second."""


# --------------------------------------------------------------------------------- the test's side


class Warm(NamedTuple):
    """A warm process, by its socket's name, and the variables that it was started with."""

    pid: int
    address: str
    fixed: dict[str, str | None]
    folder: Path | None
    """Of its log; None where another process started it."""

    def fork(self, module: str, words: Sequence[Any], **more: Any) -> int:
        """A process forked from it. Raises RuntimeError with what it said where it has ended."""
        try:
            return fork(self.address, module, [str(word) for word in words], **more)
        except ConnectionError as error:
            said = (self.folder / "log").read_text() if self.folder else "no word"
            raise RuntimeError(f"the warm process forks nothing: {said}") from error


@cache
def warm() -> Warm:
    """The warm process of this one; it ends with it."""
    address = f"asyncrl-tests-{os.getpid()}"
    held = ExitStack()
    folder = held.enter_context(own_folder("warm"))
    atexit.register(held.close)
    here = Path(__file__)
    paths = [str(here.parent), str(here.parents[2]), os.environ.get("PYTHONPATH", "")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen(64)
        descriptor = str(listener.fileno())
        pid = spawn(
            "the warm process",
            [sys.executable, __file__, descriptor, "." * TITLE_BYTES],
            log=folder / "log",
            env={**threads_of(1), "PYTHONPATH": os.pathsep.join(paths)},
            descriptors=[listener.fileno()],
        ).pid
    return Warm(pid, address, {name: os.environ.get(name) for name in FIXED}, folder)


def python_of_workers() -> str:
    """The program that execnet calls in place of Python, for workers that are forked."""
    client = [sys.executable, "-I", "-S", str(Path(__file__).with_name("warm.py"))]
    return shlex.join([*client, warm().address, WORKER])


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` of `python -m MODULE …`: forked from the warm process where it can be. So
    is one in a network namespace (`nsenter --net=FILE python -m MODULE …`)."""

    python = sys.executable

    def warm(self) -> Warm:
        return warm()

    def _execute_child(self, args: Any, *rest: Any) -> None:
        (_, _, _, _, folder, env, _, _, _, stdin, _, _, stdout, _, stderr) = rest[:15]
        env = dict(os.environ if env is None else env)
        network, words = "", list(args)
        if words[0] == "nsenter":
            network, words = words[1].removeprefix("--net="), words[2:]
        of_module = words[:2] == [self.python, "-m"]
        if not of_module or any(env.get(name) != had for name, had in self.warm().fixed.items()):
            super()._execute_child(args, *rest)
            return
        streams = [mine if mine >= 0 else n for n, mine in enumerate((stdin, stdout, stderr))]
        try:
            self.pid = self.warm().fork(
                words[2],
                words[3:],
                environment=env,
                folder=folder,
                streams=streams,
                network=network,
            )
        finally:
            self._close_pipe_fds(*rest[9:15])
        self._child_created = True


@contextmanager
def warm_of(python: str, modules: Sequence[str], *paths: str) -> Iterator[type[Popen]]:
    """Starts of another Python by forks of a warm process of it that has imported the modules.
    Theirs, and the test's own, are in `paths`."""
    address = f"asyncrl-tests-{os.getpid()}-{len(python)}"
    argv = [python, str(Path(__file__).with_name("warm_server.py"))]
    path = os.pathsep.join([str(Path(__file__).parent), *paths])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen(64)
        process = subprocess.Popen(
            [*argv, str(listener.fileno()), "." * TITLE_BYTES, *modules],
            env=os.environ | {"PYTHONPATH": path},
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    known = Warm(process.pid, address, {name: os.environ.get(name) for name in FIXED}, None)

    class PopenOfAnother(Popen):
        def warm(self) -> Warm:
            return known

    PopenOfAnother.python = python
    try:
        yield PopenOfAnother
    finally:
        process.kill()
        process.wait()


def run(
    argv: Sequence[str],
    *,
    start: type[Popen] = Popen,
    timeout: float | None = None,
    check: bool = False,
    **more: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` by such a start."""
    if more.pop("capture_output", False):
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(argv, **more) as process:
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
    gc.disable()
    installed = not_named()
    preloaded = importlib.import_module(PRELOADED)
    imported = (*_of_commands(), *preloaded.MODULES, *preloaded.OF_AGENTS, *BESIDE, *OF_TESTS)
    imported += tuple(NURSERIES.values())
    for module in (*imported, f"{ACTOR}.__main__"):
        importlib.import_module(module)
    preloaded.model_class("")
    for section in Section.__subclasses__():
        table_of(section)  # the types of settings are read once
    freeze()
    set_title(["the-warm-process"])
    serve(socket.socket(fileno=int(sys.argv[1])), installed, partial(_become, installed))


def _of_commands() -> set[str]:
    """The modules of asyncrl that its commands import when they are called."""
    found = importlib.util.find_spec("asyncrl.cli")
    assert found is not None and found.origin is not None
    tree = ast.parse(Path(found.origin).read_text())
    named = (node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {module for module in named if module and module.startswith("asyncrl.")}


def _become(
    installed: list[str], module: str, words: Sequence[str], descriptors: Sequence[int]
) -> None:
    """Be a process of asyncrl, in the child, where more than its imports is to be done."""
    if module in (PRELOADED, ACTOR):
        os.setsid()
        _trace_what_is_compiled()
        _fork_nurseries_of_actors(installed)
    if module == ACTOR:
        _reseed()
        end_with(sys.modules[f"{ACTOR}.__main__"].main)
    if module == PRELOADED:
        sys.argv[1] = str(descriptors[0])
        sys.modules["__main__"] = sys.modules[PRELOADED]
        end_with(sys.modules[PRELOADED].main)
    if module in NURSERIES.values():
        _reseed()
        sys.modules["__main__"] = sys.modules[module]
        end_with(partial(sys.modules[module].main, descriptors[0]))
    if module == WORKER:
        _reseed()
        gc.disable()  # until all is collected (tests/conftest.py)
        gc.unfreeze()  # as hypothesis looks for who refers to a generator
        sys.modules["anyio"].__doc__ = "PYTEST_DONT_REWRITE"  # else pytest warns that it is there
        globals()["warm"] = own = cache(partial(_of_its_own, installed))
        own()  # while this process has one thread
        sys.modules["warm_process"] = sys.modules["__main__"]
    if module == SERVER:
        _renumber(descriptors, [int(word) for word in words[:-1]])
    if module in (WORKER, SERVER):
        main = sys.modules["__main__"] = ModuleType("__main__")
        end_with(partial(exec, words[-1], vars(main)))
    if module in PROGRAMS or (words and words[0] in FORKING):
        _fork_what_it_starts(_of_its_own(installed))
        launch = game_launcher._launch

        def launch_with_its_own(*given: Any) -> None:  # in a fork of the launcher of a game
            _fork_what_it_starts(_of_its_own(installed))
            launch(*given)

        game_launcher._launch = launch_with_its_own  # type: ignore[assignment]


def _renumber(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Have the descriptors under these numbers."""
    between = [fcntl.fcntl(one, fcntl.F_DUPFD, 2 * max(numbers)) for one in descriptors]
    for one in descriptors:
        os.close(one)
    for one, number in zip(between, numbers, strict=True):
        os.dup2(one, number)
        os.close(one)


def _reseed() -> None:
    """Have random generators of its own, as each fork of a fork server has."""
    import numpy as np
    import torch

    np.random.seed()
    torch.default_generator.seed()


def _of_its_own(installed: list[str]) -> Warm:
    """A warm process that is a child of this one, and ends with it: what it forks can be adopted
    here."""
    address = f"asyncrl-tests-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen(64)
        if not (pid := os.fork()):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.setsid()
            set_title(["the-warm-process-of-a-command"])
            with open(os.devnull, "r+b", buffering=0) as nothing:  # noqa: PTH123
                for stream in (0, 1, 2):
                    os.dup2(nothing.fileno(), stream)
            serve(listener, installed, partial(_become, installed))
    return Warm(pid, address, {name: os.environ.get(name) for name in FIXED}, None)


def _fork_what_it_starts(known: Warm) -> None:
    """Have this command's fork servers, and the modules that its checks run, forked likewise."""
    globals()["warm"] = lambda: known
    fork_nurseries(known)
    torch_process.subprocess = SimpleNamespace(run=run)  # type: ignore[assignment]

    def start(
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        cores: Collection[int] | None = None,
        env: Mapping[str, str] | None = None,
        descriptors: Collection[int] = (),
    ) -> Process:
        if argv[2] not in (PRELOADED, ACTOR):
            return spawn(name, argv, log=log, cores=cores, env=env, descriptors=descriptors)
        with log.open("ab") as file, open(os.devnull) as nothing:  # noqa: PTH123
            begins = file.tell()
            streams = [nothing.fileno(), file.fileno(), file.fileno(), *descriptors]
            made: dict[str, Any] = {"environment": environment(cores, env), "cores": cores}
            pid = known.fork(argv[2], argv[3:], streams=streams, **made)
        return Process(name, pid, partial(reap, pid), log, begins)

    forkserver.spawn = start  # type: ignore[assignment]


class Nursery:
    """A process that was forked, with the part of a `trio.Process` that `open_forks` uses."""

    def __init__(self, pid: int) -> None:
        self._pid, self._descriptor = pid, os.pidfd_open(pid)

    async def wait(self) -> None:
        if self._descriptor >= 0:
            await trio.lowlevel.wait_readable(self._descriptor)
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            reap(self._pid)

    def kill(self) -> None:
        if self._descriptor >= 0:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)


def fork_nurseries(known: Warm) -> None:
    """Have the nursery processes that this process starts forked of its warm process."""

    async def start(module: str, control: int, environment: Mapping[str, str]) -> Nursery:
        with open(os.devnull) as nothing:  # noqa: ASYNC230, PTH123
            streams = [nothing.fileno(), 1, 2, control]
            pid = known.fork(module, [control], environment=dict(environment), streams=streams)
        return Nursery(pid)

    worker_forks._start = start  # type: ignore[assignment]


def _fork_nurseries_of_actors(installed: list[str]) -> None:
    """Have each actor that starts one begin with a warm process, while it has one thread."""
    main = sys.modules[f"{ACTOR}.__main__"]
    begin = main.main

    def begin_with_it() -> None:
        if sys.argv[1] in NURSERIES:
            fork_nurseries(_of_its_own(installed))
        begin()

    main.main = begin_with_it


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
