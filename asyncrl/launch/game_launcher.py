"""The runs of a game as one: each is a process of its own with the launcher of any run. Frozen
policies are processes beside them, which end when all runs have.

    signals ──▶ each run (the first one drains all)
    lines   ◀── each run, with its policy's name before them
    an end  ──▶ a failed run ends the others; after a run that ended well the others may finish

Invariant: no run outlives this process, and the status is that of the first run that did not end
well.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import trio
from rich.console import Console

from asyncrl.config import Config
from asyncrl.escape import escaped
from asyncrl.exit_status import INTERRUPTED
from asyncrl.runtime.logs import path as log_path
from asyncrl.runtime.output import Output
from asyncrl.runtime.processes.process import Process
from asyncrl.runtime.processes.supervisor import describe_exit
from asyncrl.runtime.processes.told_to_end import obeying
from asyncrl.sandbox.syscalls import PR_SET_PDEATHSIG, prctl

LINE_BYTES = 2**16
"""Bytes of a line, at most; a longer one is cut there."""
DRAIN_S = 60.0
"""Seconds beyond `supervision.grace_s` in which a run must have drained."""


class PolicyRun(NamedTuple):
    """A run of a game, or a frozen policy, checked and claimed; `resume` is its directory if it
    continues one."""

    policy: str
    config: Config
    resume: Path | None

    @property
    def frozen(self) -> bool:
        """True of a frozen policy, which is no run."""
        return bool(self.config.game.frozen)


class _RunProcess(NamedTuple):
    run: PolicyRun
    process: Process
    output: int


def launch_game(runs: Sequence[PolicyRun], console: Console) -> int:
    """Run all to the end. Returns the exit status of the whole."""
    children = [_forked(run) for run in runs]
    return trio.run(_RunningGame(children, console).run, strict_exception_groups=True)


def _forked(run: PolicyRun) -> _RunProcess:
    """Start a run: a fork of this process, which has checked it. It must be called before any
    event loop runs here."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    log = log_path(Path(run.config.run.dir), "launcher", 0)
    parent = os.getpid()
    if not (pid := os.fork()):
        os.close(reading)
        _launch(run, writing, parent)
    os.close(writing)
    return _RunProcess(run, Process(run.policy, pid, partial(_reap, pid), log, 0), reading)


def _reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _launch(run: PolicyRun, writing: int, parent: int) -> NoReturn:
    """Be the launcher of a run, in a session of its own, which ends with the game's process."""
    status = 1
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            os.close(writing)
            if run.frozen:
                from asyncrl.launch.past.past_player import play_past

                status = play_past(run.config)
            else:
                from asyncrl.launch.launcher import launch

                console = Console(file=Output(sys.stdout), width=120)  # type: ignore[arg-type]
                status = launch(run.config, resume=run.resume, console=console)
    except BaseException:  # noqa: BLE001 (this process ends here, and the game with it)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class _RunningGame:
    """The runs, from their start to the last end. `ended` are the statuses of those that are
    over."""

    def __init__(self, children: Sequence[_RunProcess], console: Console) -> None:
        self._children, self._console = children, console
        self._ended = dict[str, int]()
        self._status = 0
        self._signalled: signal.Signals | None = None

    async def run(self) -> int:
        """Attend to all of them. Returns the status of the whole."""
        async with obeying(self._obey), trio.open_nursery() as nursery:
            async with trio.open_nursery() as lives:
                for child in self._children:
                    lives.start_soon(self._show, child)
                    lives.start_soon(self._attend, child, nursery)
            nursery.cancel_scope.cancel()
        if self._status:
            return self._status
        return INTERRUPTED if self._signalled is signal.SIGINT else 0

    async def _attend(self, child: _RunProcess, ending: trio.Nursery) -> None:
        """Wait for the end of a run, and end the others by it."""
        try:
            code = await child.process.wait()
        finally:
            await child.process.kill_group()
        name, first = child.run.policy, not self._ended
        self._ended[name] = code
        if not self._runs_left:
            ending.start_soon(self._end, 0.0)  # frozen policies have nobody to play with
        elif code not in (0, INTERRUPTED):
            self._say(f"The run of {name} {describe_exit(code)}, so the game is over.")
            ending.start_soon(self._end, 0.0)
        elif first and self._signalled is None:
            self._say(f"The run of {name} has ended; the others finish with what was played.")
            ending.start_soon(self._end, child.run.config.supervision.stall_s / 2)
        if code not in (0, INTERRUPTED) and not self._status:
            self._status = code if code > 0 else 1

    @property
    def _runs_left(self) -> list[_RunProcess]:
        return [child for child in self._left if not child.run.frozen]

    @property
    def _left(self) -> list[_RunProcess]:
        return [child for child in self._children if child.run.policy not in self._ended]

    async def _end(self, after_s: float) -> None:
        """End the runs that are left after so many seconds: by a drain, then at once, then by
        SIGKILL, which nothing outlasts."""
        await trio.sleep(after_s)
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            for child in self._left:
                child.process.signal(number)
            grace_s = max((c.run.config.supervision.grace_s for c in self._left), default=0.0)
            await trio.sleep(grace_s + DRAIN_S)

    async def _show(self, child: _RunProcess) -> None:
        """Print the lines of a run until its end."""
        rest = b""
        async with trio.lowlevel.FdStream(child.output) as stream:
            async for piece in stream:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._print(child, line)
                if len(rest) > LINE_BYTES:
                    self._print(child, rest)
                    rest = b""
        if rest:
            self._print(child, rest)

    def _print(self, child: _RunProcess, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self._say(f"{child.run.policy} │ {escaped(text)}")

    def _say(self, text: str) -> None:
        self._console.out(text, highlight=False)

    def _obey(self, number: signal.Signals) -> None:
        """Pass a signal on to all runs, which obey it as any run does. Frozen policies play until
        all runs have drained."""
        self._signalled = self._signalled or number
        for child in self._runs_left:
            child.process.signal(number)
