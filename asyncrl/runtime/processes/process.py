"""Child processes that cannot outlive the run. Invariant: a child's session ends with the child,
and the child with its parent, unless it first calls `outlive_parent`.

The parent-death signal belongs to the *thread* that forked: it fires when that thread ends, not
only when its process does. trio starts processes in a worker thread, which ends when it is idle; so
`spawn` calls Popen itself, and only from the main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import trio

from asyncrl.files import open_growing
from asyncrl.runtime.output import complain

_PARENT = "_ASYNCRL_PARENT_PID"
_PR_SET_PDEATHSIG = 1
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
KILL_S = 10.0
"""Seconds that a killed session may take to be gone."""
_LOOK_AGAIN_S = 1.0
"""Seconds after which a session is looked for again, if the machine had no room to look."""
_TAIL_BYTES = 2**16
_TAIL_LINES = 20
_TRACEBACK = re.compile(
    r"^(  \+ Exception Group )?Traceback \(most recent call last\):|^Fatal Python error: ",
    re.MULTILINE,
)
_EXCEPTION = re.compile(r"([a-z_]\w*\.)*[A-Z]\w*: \S")
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


# --------------------------------------------------------------------------------------- the child


def become_child(ended: signal.Signals = signal.SIGKILL) -> None:
    """Die with the parent, or get the signal `ended` at its end. The main of a process started by
    `spawn` calls this first.

    Raises RuntimeError in a process that `spawn` did not start, and ends this process if the
    parent is gone already.
    """
    parent = os.environ.pop(_PARENT, None)
    if parent is None:
        raise RuntimeError(
            "this process is one of a run's actors and is started by the launcher; run `asyncrl "
            "train` instead"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, ended, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot ask for a signal at the parent's death")
    if os.getppid() != int(parent):  # it died before the line above
        raise SystemExit(1)
    faulthandler.enable()  # a crash in native code leaves its Python stack in the log


def outlive_parent() -> None:
    """Live on when the parent ends. The main of a process started by `spawn` calls this first if
    something else ends it."""
    os.environ.pop(_PARENT, None)
    faulthandler.enable()


# -------------------------------------------------------------------------------------- the parent


def spawn(
    name: str,
    argv: Sequence[str],
    *,
    log: Path,
    cores: Collection[int] | None = None,
    env: Mapping[str, str] | None = None,
    descriptors: Collection[int] = (),
) -> Process:
    """Start `argv`, which calls `become_child` first, as the leader of a new session. Call it in
    the main thread of a trio run.

    Output and errors are appended to `log`. With `cores`, it runs on these only, and numerical
    libraries start that many threads. `env` is added to this process's environment. Of the open
    files it inherits `descriptors` alone, under their numbers. Raises OSError.
    """
    require_main_thread(name)
    with open_growing(log) as file, _affinity(cores):
        start = file.tell()
        popen = subprocess.Popen(
            argv,
            env=environment(cores, env),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            pass_fds=descriptors,
        )
    try:
        return Process(name, popen.pid, popen.wait, log, start)
    except OSError:  # without a descriptor of it: it would be a child that no one knows
        popen.kill()
        popen.wait()
        raise


def require_main_thread(name: str) -> None:
    """Raise RuntimeError in another thread: its end would be the end of the child `name`."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            f"{name} must be started from the main thread: its life is tied to the thread that "
            "starts it"
        )


def environment(
    cores: Collection[int] | None = None, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a child that calls `become_child`: this process's, as many threads as
    there are `cores`, and `more`; `isolated`."""
    threads = {} if cores is None else threads_of(len(cores))
    inherited = {**isolated(os.environ), "PYTHONUNBUFFERED": "1", _PARENT: str(os.getpid())}
    return inherited | threads | dict(more or {})


def isolated(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, changed so that Python imports nothing from the current directory, unless
    PYTHONPATH names it; empty parts, which Python takes for it, are removed.

    >>> isolated({"PYTHONPATH": ":/mine"})
    {'PYTHONPATH': '/mine', 'PYTHONSAFEPATH': '1'}
    """
    safe = {**environment, "PYTHONSAFEPATH": "1"}
    if path := environment.get("PYTHONPATH"):
        safe["PYTHONPATH"] = os.pathsep.join(filter(None, path.split(os.pathsep)))
    return safe


def threads_of(count: int) -> dict[str, str]:
    """The variables by which numerical libraries start `count` threads."""
    return dict.fromkeys(_THREADS, str(count))


class Process:
    """A child of this process, and the session that it leads. `reap` takes its exit code from the
    kernel, once it has ended."""

    def __init__(
        self, name: str, pid: int, reap: Callable[[], int], log: Path, log_start: int
    ) -> None:
        self.name = name
        self.pid = pid
        self.log = log
        self._log_start = log_start
        self._reap = reap
        self._code: int | None = None
        self._pidfd = os.pidfd_open(pid)
        self._ending = trio.Lock()

    displaced = False
    """It runs on the machine of its parent, and ends by itself."""

    async def wait(self) -> int:
        """The child's exit code (-9 if SIGKILL ended it), once nothing of its session is left:
        what the child left behind is killed."""
        async with self._ending:
            if self._code is None:
                await trio.lowlevel.wait_readable(self._pidfd)
                # Until it is reaped, a dead leader keeps its id, and so its group's, from being
                # reused.
                await self._empty_session()
                self._code = self._reap()
                os.close(self._pidfd)
                _reap_group(self.pid)
        return self._code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child alone; does nothing if it has ended."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        """Ask the child to end."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the child alone; what it leaves behind is killed by `wait`."""
        self.signal(signal.SIGKILL)

    async def kill_group(self) -> int:
        """Kill the child and its session, and return its exit code once they are gone. A
        cancellation waits for that. All of them get the signal before the first is waited for; if
        one is still there after KILL_S (it may hang in a driver), this is reported, and -9
        returned."""
        if self._code is None:
            _kill(self.pid)
            self.signal(signal.SIGKILL)  # a child just forked may not lead its group yet
            self._close(self._kill_session() or [])
        with trio.CancelScope(deadline=trio.current_time() + KILL_S, shield=True):
            return await self.wait()
        complain(
            f"{self.name} (process {self.pid}) is not dead {KILL_S:g} s after SIGKILL; look at it "
            "with ps: the machine may be overloaded, or the process may hang in a driver."
        )
        return -signal.SIGKILL

    def tail(self) -> str:
        """The last traceback in the child's log, or else its last lines."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, size - _TAIL_BYTES))
                return last_traceback(file.read().decode(errors="replace"))
        except OSError as error:
            return f"its log cannot be read: {error}"

    async def _empty_session(self) -> None:
        """Kill what is left of the session of a dead leader, in whatever group it is, and wait
        until it is gone. A machine without room to look, for half of KILL_S, costs what has left
        the leader's group, and not the end of the child."""
        patient_until = trio.current_time() + KILL_S / 2
        while True:
            # The leader's group at once, so that none of it can escape by a fork before the scan.
            _kill(self.pid)
            killed = self._kill_session()
            if killed is None and trio.current_time() < patient_until:
                await trio.sleep(_LOOK_AGAIN_S)
                continue
            if not killed:
                return
            try:
                for pidfd in killed:
                    await trio.lowlevel.wait_readable(pidfd)
            finally:
                self._close(killed)

    def _kill_session(self) -> list[int] | None:
        """Kill every process of the session but its leader, and return descriptors of them; None if
        the machine has no room to look at all of them."""
        killed = list[int]()
        try:
            for pid in _living():
                if pid != self.pid and _session(pid) == self.pid:
                    with contextlib.suppress(ProcessLookupError):
                        killed.append(os.pidfd_open(pid))
                        if _session(pid) == self.pid:  # or else the id was reused meanwhile
                            signal.pidfd_send_signal(killed[-1], signal.SIGKILL)
                        else:
                            os.close(killed.pop())
        except OSError:
            self._close(killed)
            return None
        return killed

    @staticmethod
    def _close(descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _reap_group(group: int) -> None:
    """Reap the dead of a group that this process has adopted (`forkserver`)."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass


def _living() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session(pid: int) -> int | None:
    """The session of a living process; None of a dead one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, _, _, session = stat.rpartition(")")[2].split()[
        :4
    ]  # "pid (name) state parent group session …", the name may hold anything
    return None if state in "ZX" else int(session)


@contextlib.contextmanager
def _affinity(cores: Collection[int] | None) -> Iterator[None]:
    """Run this thread on `cores`, so that a child started now has them from its first
    instruction."""
    if cores is None:
        yield
        return
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def last_traceback(text: str) -> str:
    """The last Python traceback in `text` with those that led to it, and what follows; or else the
    last lines of `text`."""
    starts = [match.start() for match in _TRACEBACK.finditer(text)]
    if not starts:
        return "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])
    while len(starts) > 1 and text[: starts[-1]].rstrip().endswith(_CHAINED):
        starts.pop()
    return text[starts[-1] :].rstrip()


def last_words(text: str) -> str:
    """The most telling line of `text`: the last that is an exception, also in a group, or else the
    last that is not empty."""
    lines = [line.strip(" |+-") for line in text.splitlines()]
    telling = [line for line in lines if _EXCEPTION.match(line)] or [line for line in lines if line]
    return telling[-1] if telling else "it printed nothing"


def names_exception(line: str) -> bool:
    """True if a line begins with an exception's name."""
    return _EXCEPTION.match(line) is not None
