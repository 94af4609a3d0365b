"""Actors forked from one process that has imported what they need: a start costs a tenth of a
second instead of the seconds that `import torch` takes.

    launcher ── control socket ──▶ fork server ── fork ──▶ middle ── fork ──▶ actor
        └──────────────── a socket pair for each actor: "go" ───────────────────┘

Invariant: an actor that was forked is, like one that was spawned, a child of the launcher. The
middle process ends at once, and the launcher adopts the actor (prctl(2),
PR_SET_CHILD_SUBREAPER). So its exit code, its end with the launcher, its session and its group are
those of `process.py`, and the end of the fork server harms no actor that runs.

The actor sends its process id when it leads a session, and the launcher sends "go" when the actor
is its child. An actor that does not receive that ends: so whichever of launcher, server and middle
process is killed, and whenever, an actor is the launcher's or ends. A server that is lost, does not
answer, or cannot fork safely (it has a second thread, or a file open that it should not have) costs
time alone: actors are then spawned.

One frame is one message of a SOCK_SEQPACKET socket. The server sends `Ready` once, and then answers
each `ForkRequest` with `ForkedChild` or `Refused`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from asyncrl.files import open_growing
from asyncrl.runtime.processes.process import (
    Process,
    become_child,
    environment,
    last_words,
    require_main_thread,
    spawn,
    threads_of,
)
from asyncrl.runtime.processes.supervisor import describe_exit
from asyncrl.runtime.processes.title import set_title

READY_S = 120.0
"""Seconds that the server has for its imports."""
ANSWER_S = 5.0
"""Seconds that it has to fork; milliseconds are usual."""
FRAME_BYTES = 2**20
TITLE_BYTES = 256
"""Room for an actor's command line in the server's, beyond what both have."""
HASH_SEED = "PYTHONHASHSEED"
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_PID = struct.Struct("<i")
_GO = b"!"

T = TypeVar("T", "Ready", "ForkedChild")


class ForkRequest(msgspec.Struct, frozen=True, tag=True):
    """Fork `python -m MODULE ARGUMENTS` with this environment and on these cores. The log and the
    socket of "go" come beside it as descriptors."""

    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    cores: tuple[int, ...]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Everything is imported."""


class ForkedChild(msgspec.Struct, frozen=True, tag=True):
    """The actor is the launcher's child."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """No actor was forked."""

    reason: str


# -------------------------------------------------------------------------------- the fork server


def begin(argv: Sequence[str]) -> socket.socket:
    """The control socket of this process, a fork server, which ends with its launcher. `argv` are
    its arguments: the socket's descriptor, the arguments of `open_fork_server`, and padding."""
    become_child()
    gc.disable()  # imports stay alive: collecting them takes an eighth of a start
    set_title([sys.executable, "-m", *argv[1:-1]])
    return socket.socket(fileno=int(argv[0]))


def serve(control: socket.socket) -> ForkRequest | None:
    """Fork actors until the launcher is gone. It returns in each actor, with the request
    that it must run, and in the server at its end, with None.

    Call it in the main thread, outside any trio run, when everything is imported.
    """
    gc.collect()
    gc.freeze()  # the collector would write to, and so copy, the pages that actors share
    gc.enable()
    unsafe = _unsafe({control.fileno()})
    control.send(msgspec.msgpack.encode(Refused(unsafe) if unsafe else Ready()))
    while True:
        text, descriptors, flags, _ = socket.recv_fds(control, FRAME_BYTES, 2)
        if not text:
            return None
        if flags & socket.MSG_CTRUNC:  # the rest is lost
            for descriptor in descriptors:
                os.close(descriptor)
            control.send(msgspec.msgpack.encode(Refused("it may open no more files")))
            continue
        request = msgspec.msgpack.decode(text, type=ForkRequest)
        log, go = descriptors
        answer = _fork(request, {control.fileno(), log, go})
        if answer is None:
            control.close()
            _become_actor(request, log, go)
            return request
        os.close(log)
        os.close(go)
        control.send(msgspec.msgpack.encode(answer))


def _fork(request: ForkRequest, known: set[int]) -> ForkedChild | Refused | None:
    """Fork an actor. Returns None in the actor, and in the server the answer to the launcher."""
    mine = os.environ.get(HASH_SEED)
    if (theirs := request.environment.get(HASH_SEED)) != mine:
        return Refused(f"{HASH_SEED} is {mine!r} here, and must be {theirs!r}")
    try:
        if unsafe := _unsafe(known):
            return Refused(unsafe)
        middle = os.fork()
    except OSError as error:
        return Refused(f"it cannot fork: {error}")
    if not middle:
        try:
            if not os.fork():
                return None
        except OSError:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(middle, 0)  # from here on the actor is the launcher's
    return Refused("its child cannot fork") if status else ForkedChild()


def _become_actor(request: ForkRequest, log: int, go: int) -> None:
    """Turn this process into what `spawn` would have started, or end it if it is not wanted."""
    os.setsid()
    with contextlib.suppress(OSError):  # a launcher that is gone sends no "go" either
        os.write(go, _PID.pack(os.getpid()))
    if not os.read(go, 1):
        os._exit(1)
    os.close(go)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.sched_setaffinity(0, request.cores)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = [request.module, *request.arguments]
    set_title([sys.executable, "-m", *sys.argv])


def _unsafe(known: set[int]) -> str:
    """The reason why a fork of this process would not be safe, "" if it is.

    A lock that another thread holds would never be released in the child, and an open file would be
    shared with it: a driver's, a link's, a journal's.
    """
    if (threads := sum(1 for _ in Path("/proc/self/task").iterdir())) != 1:
        return f"it has {threads} threads"
    for entry in Path("/proc/self/fd").iterdir():
        if int(entry.name) > 2 and int(entry.name) not in known:
            with contextlib.suppress(FileNotFoundError):  # of the listing itself
                return f"it has {entry.readlink()} open"
    return ""


# ------------------------------------------------------------------------------------ the launcher


class ForkServer:
    """The fork server, as the launcher sees it. Made by `open_fork_server`."""

    def __init__(
        self, process: Process, control: socket.socket, lost: Callable[[str], None]
    ) -> None:
        self._process = process
        self._control = control
        self._lost: Callable[[str], None] | None = lost
        self._usable = False
        self._settled = trio.Event()

    async def settled(self) -> None:
        """Wait until the server has imported everything, or is lost; at most READY_S."""
        await self._settled.wait()

    def start(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        log: Path,
        cores: Collection[int] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start `python -m MODULE ARGUMENTS` as `spawn` does: by a fork if the server is ready,
        and else by `spawn`. Call it in the main thread of a trio run. Raises OSError.

        It blocks for the milliseconds of a fork, at most ANSWER_S.
        """
        require_main_thread(name)
        if self._usable:
            request = ForkRequest(
                module,
                tuple(arguments),
                environment(cores, env),
                tuple(sorted(os.sched_getaffinity(0) if cores is None else cores)),
            )
            try:
                return self._fork(name, request, log)
            except TimeoutError:
                self._give_up(f"did not answer within {ANSWER_S:g} s")
            except (EOFError, ConnectionError):
                self._usable = False  # it ended: `_watch` says how
            except (OSError, _ForkRefused) as error:
                self._give_up(f"does not fork: {error}")
        argv = [sys.executable, "-m", module, *arguments]
        return spawn(name, argv, log=log, cores=cores, env=env)

    def _fork(self, name: str, request: ForkRequest, log: Path) -> Process:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with open_growing(log) as file, ours, _adopting():
            start = file.tell()
            ours.settimeout(ANSWER_S)
            try:
                with theirs:
                    text = msgspec.msgpack.encode(request)
                    socket.send_fds(self._control, [text], [file.fileno(), theirs.fileno()])
                _answer(self._control.recv(FRAME_BYTES), ForkedChild)
                pid = _pid(ours)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # a child of ours?
            except BaseException:
                self._process.signal(signal.SIGKILL)
                _withdraw(ours)
                raise
            process = Process(name, pid, partial(_reap, pid), log, start)
            with contextlib.suppress(BrokenPipeError):  # killed already, as its exit code says
                ours.send(_GO)
        return process

    async def _watch(self) -> None:
        """Wait until it is ready, and until it ends."""
        with trio.move_on_after(READY_S) as deadline:
            await trio.lowlevel.wait_readable(self._control)
            try:
                _answer(self._control.recv(FRAME_BYTES), Ready)
                self._usable = True
            except (EOFError, OSError):
                pass  # it ended, and its exit code says more
            except _ForkRefused as refused:
                self._give_up(f"does not fork: {refused}")
        if deadline.cancelled_caught:
            self._give_up(f"was not ready within {READY_S:g} s")
        self._settled.set()
        code = await self._process.wait()
        words = f"; its last words: {last_words(self._process.tail())}" if code > 0 else ""
        self._give_up(f"{describe_exit(code)}{words}")

    def _give_up(self, why: str) -> None:
        """Stop using it, and report that the first time."""
        self._usable = False
        self._settled.set()
        self._process.signal(signal.SIGKILL)
        if self._lost is not None:
            lost, self._lost = self._lost, None
            lost(f"The fork server {why}. Actors are started without it, some seconds slower.")


class _ForkRefused(Exception):
    """The server refused to fork; the text says why."""


@asynccontextmanager
async def open_fork_server(
    module: str,
    arguments: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    lost: Callable[[str], None],
) -> AsyncIterator[ForkServer]:
    """A fork server, `python -m MODULE`, for the length of the block; it is dead at the end of it,
    and its actors live on. `lost` is called with one sentence if it cannot be used, or no
    longer."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            padding = "." * TITLE_BYTES
            argv = [sys.executable, "-m", module, str(theirs.fileno()), module, *arguments, padding]
            process = spawn(
                "the fork server",
                argv,
                log=log,
                env={**threads_of(1), **env},  # OpenBLAS starts its threads when it is imported
                descriptors=[theirs.fileno()],
            )
        ours.settimeout(ANSWER_S)
        server = ForkServer(process, ours, lost)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server._watch)
                yield server
                nursery.cancel_scope.cancel()
        finally:
            await process.kill_group()


def _answer(text: bytes, wanted: type[T]) -> T:
    """Return the server's answer. Raises _ForkRefused, and EOFError if it has ended."""
    if not text:
        raise EOFError
    answer = msgspec.msgpack.decode(text, type=Ready | ForkedChild | Refused)
    if not isinstance(answer, wanted):
        raise _ForkRefused(
            answer.reason if isinstance(answer, Refused) else f"it answered {answer}"
        )
    return answer


def _pid(actor: socket.socket) -> int:
    """The process id that a forked actor sends. Raises EOFError if it ended before."""
    if not (text := actor.recv(_PID.size)):
        raise EOFError
    pid: int = _PID.unpack(text)[0]
    return pid


def _withdraw(actor: socket.socket) -> None:
    """End the actor at the other end, if there is one, and reap it, if it is a child of this
    process."""
    with contextlib.suppress(OSError, EOFError):
        actor.shutdown(socket.SHUT_WR)
        pid = _pid(actor)
        actor.recv(1)  # until it has ended
        _reap(pid)


def _reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Adopt orphans among this process's descendants in the block. Only for a fork: other
    orphans are not its concern."""
    libc, before = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    if libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) or libc.prctl(
        _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
    ):
        raise OSError(ctypes.get_errno(), "cannot adopt the processes that are forked")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
