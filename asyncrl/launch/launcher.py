"""Start of a run's processes, and its exit status.

    fork server → prepare the model → supervise: coordinator, trainer × ranks, rollout × N,
    reward × M → (the trainer or the coordinator is lost: supervise once more) → show the summary

`asyncrl.runtime.processes.run_supervisor` restarts actors, listens to the coordinator and ends a
life of the run, and `asyncrl.runtime.processes.healing` decides whether another one begins; this
file starts actors as processes, and shows the run to the user. Each actor leads a session of its
own, so Ctrl-C reaches the launcher alone, which lets the coordinator drain the run. Invariant:
however the launcher ends, no process of the run outlives it: actors die with it by the kernel's
parent-death signal, and servers of theirs `supervision.keep_servers_s` later, unless another
launcher resumes the run.
"""

from __future__ import annotations

import logging
import secrets
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio
from rich.console import Console

from asyncrl import config as configuration
from asyncrl.bundled.bundled_model import warmed_to
from asyncrl.bundled.outlook import ended
from asyncrl.config import Config
from asyncrl.config.cluster import joined, local_rollouts, ranks_here
from asyncrl.config.cores import divide_cores
from asyncrl.config.mix import each
from asyncrl.engines.servers.kept_servers import servers_ended
from asyncrl.escape import escaped
from asyncrl.exit_status import FAILED, INTERRUPTED
from asyncrl.explain.display import Display
from asyncrl.files import forget_partial, forget_partial_folders, takes_nothing
from asyncrl.launch.cluster.actor_placement import ActorPlacement
from asyncrl.launch.cluster.agents_placement import AgentsPlacement
from asyncrl.launch.cluster.local_placement import ENVIRONMENT, PRELOADED, SMALL, LocalPlacement
from asyncrl.launch.cluster.machines import Machines
from asyncrl.launch.cluster.ray_placement import keep_ray
from asyncrl.launch.cluster.reserved_port import keep_port
from asyncrl.launch.image_fetching import fetch_run_images
from asyncrl.launch.machine_left import cores_here
from asyncrl.launch.page import keep_page
from asyncrl.launch.run_copy import keep_copy
from asyncrl.launch.run_end import RunEnd
from asyncrl.launch.sinks import keep_sink
from asyncrl.launch.trainer_places import TrainerPlaces
from asyncrl.messages import Progress, Replace, Role, StatusUpdate
from asyncrl.messages.address import UnixAddress
from asyncrl.os_errors import SCARCE, number_of, remedy
from asyncrl.runtime import logs
from asyncrl.runtime.ipc.endpoints import serve
from asyncrl.runtime.ipc.keys import new_key, write_key
from asyncrl.runtime.logs import FOLDER, Seldom
from asyncrl.runtime.logs import path as log_path
from asyncrl.runtime.output import complain
from asyncrl.runtime.processes.forkserver import ForkServer, open_fork_server
from asyncrl.runtime.processes.healing import Healing, healed
from asyncrl.runtime.processes.process import last_words
from asyncrl.runtime.processes.run_supervisor import Interrupted, RunSupervisor, SupervisedEnd
from asyncrl.runtime.processes.standstill import TICK_S
from asyncrl.runtime.processes.supervisor import ActorFailed, Child, describe_exit
from asyncrl.runtime.processes.told_to_end import obeying
from asyncrl.runtime.progress import receive
from asyncrl.runtime.run_dir import (
    GATEWAY_KEY,
    INITIAL,
    JOIN_TOKEN,
    KEY,
    LAST_STATUS,
    LAUNCHER,
    MEETING_PLACES,
    PROGRESS,
    RUN_TOML,
    STALL,
    STATUS,
    SUMMARY,
)
from asyncrl.sandbox.boxes.box_ends import remote_ends
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.enders import Enders
from asyncrl.sandbox.opened import any_left
from asyncrl.training.checkpoint_index import FOLDER as CHECKPOINTS

logger = logging.getLogger(__name__)

NO_THREAD = "can't start new thread"
"""The text of Python's RuntimeError for a machine without room for a thread."""
SIGNALLED: Mapping[Interrupted, str] = {
    "drains": "Draining: unfinished responses are parked, and the model is saved. A second signal "
    "ends the run at once.",
    "over": (
        "Training has ended; copies and trackers are being completed. A second signal ends "
        "that at once."
    ),
}
"""Words for what a first signal does."""
TOLD = 3
"""Things that could not be ended that are told one by one."""


def launch(config: Config, *, resume: Path | None, console: Console) -> int:
    """Run to the end. Returns the exit status: 0 if the run ended well, 130 if the user interrupted
    it, 1 if it failed or the machine has no room for this process, 2 if the trainer refused
    its model."""
    launch = _Launch(config, resume is not None, console)
    try:
        return trio.run(launch.run, strict_exception_groups=True)
    except (Exception, BaseExceptionGroup) as error:
        if not (lack := lacked(error)):
            raise
        launch.give_up(lack)
        return FAILED


def lacked(error: BaseException) -> str:
    """The words for what the machine lacks, if nothing else is in an error or in a group of them;
    else "". A run whose launcher has no room fails, and is no fault of the code.

    >>> lacked(ExceptionGroup("", [OSError(24, "Too many open files"), MemoryError()]))
    '[Errno 24] Too many open files'
    >>> lacked(ExceptionGroup("", [MemoryError(), KeyError("a")]))
    ''
    """
    if isinstance(error, BaseExceptionGroup):
        words = [lacked(each) for each in error.exceptions]
        return words[0] if all(words) else ""
    if isinstance(error, MemoryError) or str(error) == NO_THREAD:
        return str(error) or "no memory is left"
    return str(error) if isinstance(error, OSError) and error.errno in SCARCE else ""


class _Launch:
    """One run, whose actors are processes. It is the `RunActors` and the `RunObserver` of its
    supervisor."""

    def __init__(self, config: Config, resume: bool, console: Console) -> None:
        self._requested = self._config = config
        self._resume = resume
        self._console = console
        self._display = Display(console)
        self._seldom = Seldom()
        self._run = Path(config.run.dir)
        self._key = new_key()
        self._cores = cores_here(config)
        self._supervisor = RunSupervisor(config, self, self)
        leaves_out = config.train.min_ranks > 0
        self._healing = Healing(config.supervision.heals, leaves_out=leaves_out)
        self._places = TrainerPlaces(config, self._display.note)
        self._more = False  # there are more ranks for the next life
        self._machines: Machines | None = None
        self._signalled: signal.Signals | None = None
        self._full: OSError | None = None  # the reason for which the run is not started again
        self._lasting = trio.CancelScope()
        self._starting = trio.CancelScope()  # until the coordinator reports the status of the run

    async def run(self) -> int:
        """Run to the end; returns the exit status."""
        write_key(self._run / KEY, self._key)
        if self._config.agent.run:
            write_key(self._run / GATEWAY_KEY, secrets.token_urlsafe().encode())
        self._clear()
        (self._run / FOLDER).mkdir(exist_ok=True)
        with logs.kept(self._run, "launcher", 0):
            async with obeying(self._obey):
                return self._report(await self._run_to_end())

    async def _run_to_end(self) -> SupervisedEnd:
        """Start what lasts, live, and clean up. Returns how the last life ended."""
        with self._display:
            async with servers_ended(self._run), trio.open_nursery() as nursery:
                if self._config.run.page_port:
                    nursery.start_soon(keep_page, self._config.run, self._display.note)
                self._fork_server: ForkServer = await nursery.start(self._keep_fork_server)
                if joined(self._config):
                    await self._let_machines_join(nursery)
                async with trio.open_nursery() as lasting:
                    over = trio.Event()
                    lasting.start_soon(self._keep_what_lasts, over)
                    await self._end_left()
                    end = await self._live()
                    await self._end_left()
                    over.set()
                if self._machines is not None:
                    await self._machines.dismiss()
                nursery.cancel_scope.cancel()
        # An actor that was killed, or had not ended when the run was over, leaves these files.
        with suppress(OSError):
            self._forget_left()
        return end

    def _report(self, end: SupervisedEnd) -> int:
        """Show the result of the run. Returns the exit status."""
        told = RunEnd(self._config, end, self._full)
        if failed := told.show(self._console):
            return failed
        if self._signalled is signal.SIGINT:
            return INTERRUPTED
        # The run was stopped before there was anything to drain.
        undrained = self._signalled is not None and not self._supervisor.connected
        return 0 if end.finished is not None or undrained else FAILED

    def give_up(self, lack: str) -> None:
        """Report that this process ended because the machine `lack`s something, while that error is
        handled. Its actors are dead, or die with it."""
        with suppress(OSError, MemoryError), logs.kept(self._run, "launcher", 0):
            logger.exception("the launcher ended")
        with suppress(OSError):
            self._forget_left()
        then = remedy(lack) if number_of(lack) else "make room for it"
        complain(escaped(f"the launcher ended: {lack}: {then}, and continue with --resume."))

    async def _keep_what_lasts(self, over: trio.Event) -> None:
        """Keep the run's copy and its sinks up to date until the run is `over`, and once more then;
        an immediate end of the run does not wait for that."""
        config, note = self._config, self._display.note
        with self._lasting:
            async with trio.open_nursery() as nursery:
                if config.run.copy:
                    limit_s = config.supervision.checkpoint_s
                    nursery.start_soon(keep_copy, config, over, note, limit_s)
                for name in config.run.sinks:
                    nursery.start_soon(keep_sink, self._run, name, over, note)

    async def _live(self) -> SupervisedEnd:
        """Run to the end; if the trainer or the coordinator is lost, go on as `--resume` does.
        Returns how the last life ended."""
        while await self._grows(end := await self._supervisor.run()) or await self._heals(end):
            self._resume = True
            self._starting = trio.CancelScope()
            self._supervisor = RunSupervisor(self._config, self, self, self._healing.lost)
            if self._signalled is not None:  # told to end when no supervisor listened
                return SupervisedEnd(None)
        return end

    async def _heals(self, end: SupervisedEnd) -> bool:
        """Prepare another life after this end of one. False if there is none."""
        if self._signalled is not None:
            return False
        if not self._healing.again(end, displaced=self._places.displaced(end)):
            return False
        if full := takes_nothing(self._run):
            self._full = full
            return False
        lost = self._healing.lost[-1]
        logger.warning("healing %d: %s", len(self._healing.lost), lost)
        self._display.note(healed(end, lost))
        self._clear()
        await self._end_left()
        if (faulty := self._healing.faulty) is not None:
            await self._places.leave_out(self._config, faulty)
        return await self._adapt()

    async def _grows(self, end: SupervisedEnd) -> bool:
        """Prepare another life after one that was ended because there are more ranks now."""
        more, self._more = self._more, False
        if not more or end.finished is not None or end.failure is not None:
            return False
        self._clear()
        await self._end_left()
        return await self._adapt()

    async def _end_left(self) -> None:
        """End what agents' attempts opened outside and left: no actor lives now. What cannot be
        ended keeps its note."""
        if not any_left(self._run):
            return  # without a thread: if there is no memory for one, its start never returns
        ends = remote_ends(BoxSettings.of(self._config.sandbox), self._run)
        enders = Enders(self._run, self._config.agent.end, ends)
        with trio.CancelScope(shield=True):
            done = await trio.to_thread.run_sync(enders.end_left)
        for one in (failed := [one for one in done if one.wrong])[:TOLD]:
            self._display.note(
                f"Something that an attempt left could not be removed: {escaped(str(one))}."
            )
        if len(failed) > TOLD:
            self._display.note(f"{len(failed)} things are left; rerun `asyncrl sweep {self._run}`.")

    async def _adapt(self) -> bool:
        """Adapt the ranks to what there is now for another life. False if it is too little."""
        found = await self._places.settings(self._config)
        if found is not None and found is not self._config:
            self._config = found
            configuration.write(found, self._run / RUN_TOML)
        self._cores = cores_here(self._requested)
        return found is not None

    def _clear(self) -> None:
        """Remove the files that a life leaves; the next one makes its own. Its status stays under
        another name until then."""
        with suppress(FileNotFoundError):  # there may be no room to say again how the run stands
            (self._run / STATUS).replace(self._run / LAST_STATUS)
        for old in (SUMMARY, STALL):
            (self._run / old).unlink(missing_ok=True)
        self._forget_left()

    def _forget_left(self) -> None:
        """Remove what actors that were killed have left of no use. Raises OSError."""
        for place in MEETING_PLACES:
            (self._run / place).unlink(missing_ok=True)
        forget_partial(self._run)
        for folder in (self._run, self._run / CHECKPOINTS):
            forget_partial_folders(folder)

    # ----------------------------------------------------------------------------------- RunActors

    async def open(self, nursery: trio.Nursery) -> None:
        """Prepare the model, and listen for the coordinator."""
        self._placement = await self._placed(nursery)
        await self._prepare()
        if any(member.image_hosts for member in each(self._config.task)):
            await self._fetch()
        if self._machines is not None:
            await self._complete(self._machines)
        what = "reading checkpoint and journal" if self._resume else "starting the coordinator"
        nursery.start_soon(self._show, what, self._starting)
        address, key = UnixAddress(self._run / LAUNCHER), self._key
        await nursery.start(
            partial(serve, address, key, self._supervisor.converse, refused=self._refused)
        )

    async def _placed(self, nursery: trio.Nursery) -> ActorPlacement:
        """The placement of the actors of a life, with which `nursery` ends."""
        config = self._config
        shares = divide_cores(
            self._cores,
            ranks_here(config),
            local_rollouts(config),
            config.machine.trainer_cores,
            config.rollout.lent_actors,
        )
        gpus = self._places.gpus
        local = LocalPlacement(config, self._run, self._fork_server, shares, gpus)
        if self._machines is None:
            return local
        rank_0 = ""
        if config.cluster.trainer_agents:
            rank_0 = str(await nursery.start(keep_port, config.cluster.host))
        return AgentsPlacement(config, local, self._machines, rank_0)

    async def _let_machines_join(self, nursery: trio.Nursery) -> None:
        """Let machines in until the run ends."""
        self._machines = Machines(self._config, self._run, self._display.note)
        self._places.machines = self._machines
        address = await nursery.start(self._machines.serve)
        if self._config.cluster.kind == "ray":
            nursery.start_soon(keep_ray, self._run, self._machines)
            return
        self._display.note(
            f"Machines join at {address}: copy {self._run / JOIN_TOKEN} to each, and run `asyncrl "
            "agent --join join.token` there."
        )

    async def _complete(self, machines: Machines) -> None:
        """Wait for the machines with which the run begins or goes on. Raises ActorFailed."""
        machines.prepared()
        waiting = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show, "waiting for machines", waiting)
            await machines.complete()
            waiting.cancel()

    async def ready(self, role: Role) -> None:
        """Wait until an actor of this role can be started."""
        await self._placement.ready(role)

    def start(self, role: Role, index: int, incarnation: int) -> Child:
        """Start one actor as a process."""
        child = self._placement.start(role, index, incarnation, resume=self._resume)
        if role == "trainer":
            self._places.started(index, child)
        return child

    async def _keep_fork_server(self, task_status: trio.TaskStatus[ForkServer]) -> None:
        """Keep a fork server until the run ends."""
        async with open_fork_server(
            PRELOADED,
            [str(self._run)],
            log=log_path(self._run, "launcher", 0),
            env=SMALL,
            lost=self._display.note,
        ) as fork_server:
            task_status.started(fork_server)
            await trio.sleep_forever()

    async def _prepare(self) -> None:
        """Prepare the model that the run starts from: the configured one, or the bundled one, which
        is warmed up once and cached. Raises ActorFailed if the preparation fails."""
        initial = self._run / INITIAL
        if initial.exists():
            return
        if self._config.model.path:
            initial.unlink(missing_ok=True)  # a model of a hub may be in another cache now
            initial.symlink_to(Path(self._config.model.path), target_is_directory=True)
            return
        loading = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show, "loading what actors need", loading)
            await self._fork_server.settled()
            loading.cancel()
        await self._warm_up()
        accuracy = warmed_to(initial)
        if accuracy is not None and (result := ended(accuracy, self._config.model.warmup_accuracy)):
            self._display.note(result)

    async def _fetch(self) -> None:
        """Fetch the images that prompts name by a URL."""
        fetching = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show, "fetching images", fetching)
            fetch = partial(fetch_run_images, self._config, self._run)
            if note := await trio.to_thread.run_sync(fetch, abandon_on_cancel=True):
                self._display.note(note)
            fetching.cancel()

    async def _warm_up(self) -> None:
        """Run the preparation of the bundled model, and show its progress. Raises ActorFailed."""
        begun = trio.CancelScope()  # until its first report

        def on_progress(progress: Progress) -> None:
            begun.cancel()
            self._display.progress(progress)

        async with trio.open_nursery() as nursery:
            await nursery.start(receive, self._run / PROGRESS, on_progress)
            nursery.start_soon(self._show, "preparing the bundled model", begun)
            child = self._fork_server.start(
                "the preparation",
                "asyncrl.bundled.prepare",
                [str(self._run)],
                log=log_path(self._run, "launcher", 0),
                cores=self._cores[:1],
                env=ENVIRONMENT,
            )
            try:
                code = await child.wait()
            finally:
                await child.kill_group()
                (self._run / PROGRESS).unlink(missing_ok=True)
            nursery.cancel_scope.cancel()
        if code:
            raise ActorFailed(child.name, code, child.tail())

    async def _show(self, what: str, scope: trio.CancelScope) -> None:
        """Show that work is in progress, until the scope is cancelled."""
        began = trio.current_time()
        with scope:
            while True:
                await trio.sleep(TICK_S)
                self._display.progress(Progress(what, 0, 0, trio.current_time() - began))

    def _refused(self, reason: str) -> None:
        if (end := self._seldom.due(reason)) is not None:
            self._display.note(f"A connection to the launcher was refused: {reason}{end}.")

    def _obey(self, number: signal.Signals) -> None:
        """Drain the run at the first signal, within `supervision.grace_s`, and end it at once at
        another one. A terminal that hangs up may send SIGHUP several times, and further ones end
        nothing."""
        if number == signal.SIGHUP and self._signalled is not None:
            return
        self._signalled = number
        if said := SIGNALLED.get(self._supervisor.interrupt()):
            self._display.note(said)
        else:
            self._lasting.cancel()

    # --------------------------------------------------------------------------------- RunObserver

    def on_status(self, update: StatusUpdate) -> None:
        """Show the status of the run."""
        self._starting.cancel()
        self._healing.stepped(update.step)
        if not self._more and self._places.more(self._config, self._run):
            self._more = True
            self._display.note(
                "A machine joined for the trainer: the run continues from its checkpoint."
            )
            self._supervisor.cancel()
        self._display.update(update)

    def on_replace(self, message: Replace) -> None:
        """Show why an actor is replaced."""
        self._display.note(f"{message.role}-{message.index} is replaced: {message.reason}.")

    def on_failure(self, name: str, code: int, restarting: bool, child: Child) -> None:
        """Show how an actor ended."""
        again = ", and is started again" if restarting else ""
        last = last_words(child.tail())
        self._display.note(f"{name} {describe_exit(code)}{again}. Its last words: {last}")
