"""Starts the processes of a run, and ends them. Invariant: whatever ends the launcher, no process
of the run outlives it.

    prepare the model → coordinator → rollout × N, reward × M, trainer → the coordinator says how it ended → everybody is killed and gone

Children lead their own sessions, so Ctrl-C reaches the launcher alone, which has the coordinator
drain the run; they die with the launcher by the kernel's parent-death signal. A rollout or reward
actor that ends is started again within its budget; a trainer or coordinator that ends takes the run
with it, and its own traceback is what the user sees.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import trio
from rich.console import Console

from asyncrl.config import Config
from asyncrl.experience.rollout import ImpossibleEvent
from asyncrl.ipc.link import Link, LinkError, UnixAddress, new_key, read_key, serve, write_key
from asyncrl.ipc.messages import (
    Drain,
    Draining,
    Exited,
    Hello,
    Message,
    Replace,
    Role,
    RunFinished,
    StatusUpdate,
)
from asyncrl.journal import JournalError, fold
from asyncrl.observe import summary
from asyncrl.observe.display import Display, show_summary
from asyncrl.observe.logs import FOLDER
from asyncrl.observe.logs import path as log_path
from asyncrl.observe.run_dir import (
    BEFORE,
    GATEWAY_KEY,
    INITIAL,
    JOURNAL,
    KEY,
    LAUNCHER,
    STALL,
    STATUS,
    SUMMARY,
)
from asyncrl.processes.machine import available_cores
from asyncrl.processes.process import Process, divide_cores, last_words, spawn
from asyncrl.processes.supervisor import (
    NO_RESTART,
    ActorFailed,
    RestartBudget,
    describe_exit,
    supervise,
)

FAILED = 1
INTERRUPTED = 130
MESSAGES = 64
START_S = 300.0
"""What the coordinator has to open the task and, where it resumes, to read the checkpoint and the
journal: at least, and `supervision.start_s`."""
LAST_WORDS_S = 3.0
"""What the coordinator has, after draining, to write its summary, when the run ends because of
somebody else."""
ENVIRONMENT = {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Some tasks iterate over sets of strings, and every process must see the same prompt at the same
place; nothing is ever downloaded."""
SMALL = ENVIRONMENT | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def launch(config: Config, *, resume: Path | None, console: Console) -> int:
    """Run to the end; the exit status: 0 if the run ended well, 130 if the user interrupted it, 1
    if it failed."""
    return trio.run(
        partial(_Launch(config, resume is not None, console).run), strict_exception_groups=True
    )


class _Launch:
    """One run's processes."""

    def __init__(self, config: Config, resume: bool, console: Console) -> None:
        self._config = config
        self._resume = resume
        self._console = console
        self._display = Display(console)
        self._run = Path(config.run.dir)
        self._cores = sorted(os.sched_getaffinity(0))[: config.machine.cores or available_cores()]
        self._children: dict[str, Process] = {}
        self._incarnations: dict[str, int] = {}
        self._silence = trio.CancelScope()
        self._to_coordinator, self._messages = trio.open_memory_channel[Message](MESSAGES)
        self._connected = trio.Event()
        self._over = trio.Event()
        self._ending = False  # the run drains: who ends now is not missed
        self._finished: RunFinished | None = None
        self._deaths: list[
            str
        ] = []  # of actors that were not started again, before the run was over
        self._signalled: signal.Signals | None = None

    async def run(self) -> int:
        """The whole life of a run."""
        write_key(self._run / KEY, new_key())
        if self._config.gateway.port:
            write_key(self._run / GATEWAY_KEY, secrets.token_urlsafe().encode())
        if (self._run / SUMMARY).exists():
            (self._run / SUMMARY).replace(self._run / BEFORE)
        for old in (STATUS, STALL):  # of the run that this one resumes
            (self._run / old).unlink(missing_ok=True)
        (self._run / FOLDER).mkdir(exist_ok=True)
        failure: ActorFailed | None = None
        with self._display:
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._obey_signals, nursery.cancel_scope)
                    await self._prepare()
                    address, key = UnixAddress(self._run / LAUNCHER), read_key(self._run / KEY)
                    await nursery.start(
                        partial(serve, address, key, self._converse, refused=self._refused)
                    )
                    nursery.start_soon(self._supervise, "coordinator", 0, None)
                    start_s = max(START_S, self._config.supervision.start_s)
                    with trio.move_on_after(start_s):
                        await self._connected.wait()
                    if not self._connected.is_set():
                        raise ActorFailed(
                            "coordinator-0",
                            0,
                            f"nothing within {start_s:g} s of its start (supervision.start_s)",
                        )
                    nursery.start_soon(self._watch)
                    for role, index, cores in self._places():
                        nursery.start_soon(self._supervise, role, index, cores)
                    await self._over.wait()
                    nursery.cancel_scope.cancel()
            except* ActorFailed as failures:
                failure = _first(failures)
        return self._report(failure)

    # ----------------------------------------------------------------------------------- processes

    async def _prepare(self) -> None:
        """Have the model that the run starts from: the one given, or the bundled one, which is
        warmed up once and cached."""
        initial = self._run / INITIAL
        if initial.exists():
            return
        if self._config.model.path:
            initial.symlink_to(Path(self._config.model.path), target_is_directory=True)
            return
        self._display.note(
            "Preparing the bundled model: its warm-up takes a minute or two, and is kept for the "
            "next run."
        )
        argv = [sys.executable, "-m", "actors.prepare", str(self._run)]
        child = spawn(
            "the preparation",
            argv,
            log=log_path(self._run, "launcher", 0),
            cores=self._cores[:1],
            env=ENVIRONMENT,
        )
        try:
            code = await child.wait()
        finally:
            await child.kill_group()
        if code:
            raise ActorFailed(child.name, code, child.tail())

    def _places(self) -> Iterator[tuple[Role, int, tuple[int, ...] | None]]:
        """Every actor but the coordinator, and its cores."""
        rollouts = self._config.rollout.actors
        shares = divide_cores(self._cores, 1, rollouts, self._config.machine.trainer_cores)
        yield "trainer", 0, shares.trainers[0]
        for index in range(rollouts):
            yield "rollout", index, shares.rollouts[index]
        for index in range(self._config.reward.actors):
            yield "reward", index, None

    async def _supervise(self, role: Role, index: int, cores: tuple[int, ...] | None) -> None:
        """Keep one actor alive; without cores of its own it computes nothing, and runs where there
        is room."""
        name, limits = f"{role}-{index}", self._config.supervision
        threads = len(cores) if cores else 1

        def start(incarnation: int) -> Process:
            argv = [
                sys.executable,
                "-m",
                "actors",
                role,
                *map(str, (index, incarnation, threads)),
                str(self._run),
            ]
            argv += ["--resume"] if self._resume else []
            child = spawn(
                name,
                argv,
                log=log_path(self._run, role, index),
                cores=cores,
                env=ENVIRONMENT if cores else SMALL,
            )
            self._children[name], self._incarnations[name] = child, incarnation
            return child

        def on_exit(name: str, code: int, restarting: bool) -> None:
            if self._finished is None and code:
                last = last_words(self._children[name].tail())
                self._display.note(
                    f"{name} "
                    f"{describe_exit(code)}{', and is started again' if restarting else ''}. Its "
                    f"last words: {last}"
                )
                self._tell(Exited(role, index, code, restarting))
                self._deaths += [] if restarting else [f"{name} {describe_exit(code)}"]

        budget = (
            RestartBudget(limits.restarts, limits.restart_window_s)
            if role in ("rollout", "reward")
            else NO_RESTART
        )
        try:
            wanted = (lambda: True) if role == "coordinator" else (lambda: not self._ending)
            await supervise(name, start, budget=budget, on_exit=on_exit, wanted=wanted)
        except ActorFailed:
            if role != "coordinator":
                with trio.move_on_after(limits.grace_s + LAST_WORDS_S):
                    await self._over.wait()
            raise
        if role == "coordinator" and self._finished is None:
            raise ActorFailed(name, 0, "")

    # --------------------------------------------------------------------------------- coordinator

    async def _watch(self) -> None:
        """A coordinator that says nothing for too long stands still: its own watchdog cannot say
        so."""
        with trio.CancelScope() as self._silence:
            self._heard()
            await trio.sleep_forever()
        raise ActorFailed(
            "coordinator-0",
            0,
            f"nothing for {self._config.supervision.stall_s:g} s (supervision.stall_s); its "
            "process stands still",
        )

    def _heard(self) -> None:
        self._silence.deadline = trio.current_time() + self._config.supervision.stall_s

    def _tell(self, message: Message) -> None:
        """Say something to the coordinator. What it does not read in time, it does not need: then
        the run is over."""
        with contextlib.suppress(trio.WouldBlock):
            self._to_coordinator.send_nowait(message)

    async def _converse(self, link: Link) -> None:
        """The coordinator's link, which it opens when it is ready for actors."""
        hello, _ = await link.receive()
        if not isinstance(hello, Hello) or hello.role != "coordinator" or self._connected.is_set():
            raise LinkError("malformed", "only the coordinator talks to the launcher, and once")
        self._connected.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, link)
            async for message, _ in link:
                match message:
                    case StatusUpdate():
                        self._heard()
                        self._display.update(message)
                    case Replace(role, index, incarnation, reason):
                        self._display.note(f"{role}-{index} is replaced: {reason}.")
                        if (
                            self._incarnations[f"{role}-{index}"] == incarnation
                        ):  # else it has ended by itself meanwhile
                            self._children[f"{role}-{index}"].signal(signal.SIGKILL)
                    case Draining():
                        self._ending = True
                    case RunFinished():
                        self._finished = message
                        break
                    case _:
                        raise LinkError(
                            "malformed",
                            f"the launcher does not understand {type(message).__name__}",
                        )
            nursery.cancel_scope.cancel()
        if self._finished is not None:
            self._over.set()

    async def _write(self, link: Link) -> None:
        async for message in self._messages:
            await link.send(message)

    def _refused(self, reason: str) -> None:
        self._display.note(f"A connection to the launcher was refused: {reason}.")

    async def _obey_signals(
        self, everything: trio.CancelScope, task_status: trio.TaskStatus[None]
    ) -> None:
        """The first SIGINT or SIGTERM drains the run within `supervision.grace_s`, a second one
        ends it at once."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                if self._signalled is not None or not self._connected.is_set():
                    self._signalled = signal.Signals(number)
                    everything.cancel()
                    return
                self._signalled = signal.Signals(number)
                self._display.note(
                    "Draining: what is being generated is parked, what is learned is saved. Once "
                    "more ends the run at once."
                )
                self._tell(Drain())
                everything.deadline = trio.current_time() + self._config.supervision.grace_s

    # -------------------------------------------------------------------------------------- report

    def _report(self, failure: ActorFailed | None) -> int:
        """Show what the run came to; its exit status."""
        path = self._run / SUMMARY
        if not path.exists() and (self._run / JOURNAL).exists():
            reason = (
                str(failure).splitlines()[0]
                if failure is not None
                else "the run was ended before it could say more"
            )
            try:
                summary.write(summary.of_ledger(fold(self._run / JOURNAL).ledger, reason), path)
            except (JournalError, ImpossibleEvent, OSError) as error:
                print(f"asyncrl: there is no summary: {error}", file=sys.stderr)
        if path.exists():
            show_summary(summary.read(path), self._run, self._console)
        if failure is not None:
            print(f"asyncrl: {failure}", file=sys.stderr)
            return FAILED
        if self._finished is not None and not self._finished.ok:
            # The coordinator may have seen a link end before anybody saw why.
            why = "; ".join([self._finished.reason, *self._deaths[:1]])
            print(
                f"asyncrl: the run failed: {why}. Its logs are in {self._run / 'logs'}.",
                file=sys.stderr,
            )
            return FAILED
        if self._signalled is signal.SIGINT:
            return INTERRUPTED
        undrained = (
            self._signalled is not None and not self._connected.is_set()
        )  # it was stopped before there was anything to drain
        return 0 if self._finished is not None or undrained else FAILED


def _first(failures: BaseExceptionGroup[ActorFailed]) -> ActorFailed:
    """The failure to show: the first of a group."""
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, ActorFailed)
    return found
