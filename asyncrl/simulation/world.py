"""One run in virtual time, life after life, until it is over. Invariant: only what is scripted or
injected differs from real processes; the coordinator, the actors, their links, the journal's
writer, the recovery and the supervision are the product's own.

    life   one start of the run: a coordinator, its actors and their supervisor; it ends as a run
           ends
    world  what outlives a life: the disk, the checkpoints, the checker. A life that did not finish
           is resumed, as a user would resume it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import trio

from actors.coordinator.coordinator import Coordinator
from actors.coordinator.event_store import EventStore
from actors.coordinator.peers import Peer
from actors.coordinator.prompts import PromptSource
from actors.coordinator.resume import begin_again, resumed
from actors.coordinator.statistics import RunStatistics
from actors.errors import CoordinatorLost
from actors.reporting import Reporter, report_s
from actors.reward_actor import reward_actor
from actors.rollout_actor import rollout_actor
from actors.trainer_actor import trainer_actor
from asyncrl.config import Config
from asyncrl.engines.protocol import Engine
from asyncrl.experience.events import AnyEvent
from asyncrl.experience.experience import Experience
from asyncrl.ipc.link import EndOfStream, Link, LinkError
from asyncrl.ipc.messages import Hello, Message, Replace, Role, StatusUpdate
from asyncrl.ipc.waits import WaitExpired
from asyncrl.journal import Journal, JournalError
from asyncrl.observe.metrics import Metrics
from asyncrl.processes.run_supervisor import RunSupervisor
from asyncrl.processes.supervisor import Child
from asyncrl.simulation import fakes, policy
from asyncrl.simulation.checker.checker import Checker
from asyncrl.simulation.network import MemoryPipe, pipes
from asyncrl.simulation.sim_disk import Mount, SimCheckpoint, SimDisk
from asyncrl.simulation.sim_process import SimProcess, leaves
from asyncrl.training.checkpoint_index import CheckpointError

if TYPE_CHECKING:
    from typing_extensions import Buffer

BETWEEN_LIVES_S = 1.0

EXPECTED: dict[Role, tuple[type[BaseException], ...]] = {
    "coordinator": (JournalError,),
    "rollout": (CoordinatorLost, LinkError, fakes.EngineCrash),
    "reward": (CoordinatorLost, LinkError, fakes.VerifiersLost, WaitExpired),
    "trainer": (CoordinatorLost, LinkError),
    "launcher": (),
}
"""What may end each actor; anything else is a bug."""


@dataclass(frozen=True)
class LifeOutcome:
    """How a life ended: `finished` says whether the coordinator said so itself."""

    finished: bool
    ok: bool
    reason: str


@dataclass
class Speeds:
    """Seconds that scripted things take. `pace` draws each request's seconds per token."""

    pace: Callable[[], float] = lambda: 0.02
    verdict_s: float = 0.05
    start_s: Callable[[], float] = lambda: 0.1
    trained_token_s: float = 0.0005
    step_s: float = 0.1
    save_s: float = 0.1


@dataclass
class World:
    """Change what is scripted before `life`; `kill` what lives while it runs."""

    seed: int
    config: Config
    checker: Checker
    speeds: Speeds = field(default_factory=Speeds)

    def __post_init__(self) -> None:
        self.random = random.Random(f"world/{self.seed}")
        self.sim_disk = SimDisk()
        self.checkpoints: list[SimCheckpoint] = []
        self.source = fakes.FakeTask(self.config)
        self.lives: list[LifeOutcome] = []
        self.processes: dict[str, SimProcess] = {}
        self.coordinator: Coordinator | None = None
        self.engine: Callable[[SimProcess], Engine] = self._engine
        self.dialled: Callable[[SimProcess, MemoryPipe], None] = lambda process, pipe: None
        """Hears of each actor's new end of a connection, before anything is sent."""
        self.saving: Callable[[SimProcess], Awaitable[str]] | None = None
        """What happens to the next checkpoint: returns the sentence it fails with, or nothing."""

    def prompts(self) -> PromptSource:
        return PromptSource(
            self.source,
            self.source,
            seed=self.seed,
            epochs=self.config.task.epochs,
            curriculum=self.config.task.curriculum,
        )

    # -------------------------------------------------------------------------------------- a life

    async def life(self) -> LifeOutcome:
        """One start of the run, until it is over or cannot go on."""
        self._broadcasts: dict[int, fakes.Broadcast] = {}
        self.processes, self.coordinator = {}, None
        self.supervisor = RunSupervisor(self.config, self, self)
        self._ended_by = "the user's grace period was over"
        try:
            end = await self.supervisor.run()
        finally:
            for process in self.processes.values():
                process.kill()
        if end.finished is not None:
            outcome = LifeOutcome(end.finished.ok, end.finished.ok, end.finished.reason)
        else:
            outcome = LifeOutcome(False, False, str(end.failure or self._ended_by))
        self.lives.append(outcome)
        return outcome

    def kill_everything(self) -> None:
        """The machine's power is lost."""
        self._ended_by = "everything was killed"
        for process in self.processes.values():
            process.kill()
        self.supervisor.cancel()

    def start_of(self, process: SimProcess) -> str:
        """The name of one start of an actor in one life."""
        return f"{process.name}/{process.incarnation}/{len(self.lives)}"

    def double(self, process: SimProcess) -> None:
        """Start an actor a second time, beside the first."""
        other = SimProcess(process.role, process.index, process.incarnation + 1, self._failed)
        self.processes[process.name] = other
        self._nursery.start_soon(other.run, self._mains[process.role])

    def alive(self, role: Role | None = None) -> list[SimProcess]:
        """The actors that run now."""
        return [p for p in self.processes.values() if p.alive and (role is None or p.role == role)]

    @property
    def _mains(self) -> dict[Role, Callable[[SimProcess], Awaitable[None]]]:
        return {
            "coordinator": self._coordinator,
            "rollout": self._rollout,
            "reward": self._reward,
            "trainer": self._trainer,
        }

    # ---------------------------------------------------------------------------------- RunActors

    async def open(self, nursery: trio.Nursery) -> None:
        """Have the tasks of actors run in this nursery."""
        self._nursery = nursery
        await trio.lowlevel.checkpoint()

    def start(self, role: Role, index: int, incarnation: int) -> SimProcess:
        """Start one actor as a task."""
        process = SimProcess(role, index, incarnation, self._failed)
        self.processes[process.name] = process
        self._nursery.start_soon(process.run, self._mains[role])
        return process

    def _failed(self, process: SimProcess, error: BaseException) -> None:
        for leaf in leaves(error):
            if not isinstance(leaf, EXPECTED[process.role]):
                self.checker.violated(
                    "no actor ends by an error that nobody injected",
                    f"{process.name}: {leaf!r}",
                    leaf,
                )

    async def _listen(self, link: Link) -> None:
        """Be the launcher's end of the coordinator's link."""
        try:
            await self.supervisor.converse(link)
        except* (LinkError, EndOfStream):
            pass
        await link.aclose()

    # -------------------------------------------------------------------------------- RunObserver

    def on_status(self, update: StatusUpdate) -> None:
        self.checker.on_status(update)

    def on_replace(self, message: Replace) -> None:
        name = f"{message.role}-{message.index}"
        self.checker.on_blame(f"{name}/{message.incarnation}/{len(self.lives)}", message.reason)

    def on_failure(self, name: str, code: int, restarting: bool, child: Child) -> None:
        pass

    # ----------------------------------------------------------------------------------- processes

    async def _coordinator(self, process: SimProcess) -> None:
        config, mount = self.config, Mount(self.sim_disk)

        def dead() -> None:
            mount.gone = True
            self.checker.close()

        process.on_death = dead
        whole = sorted((c for c in self.checkpoints if not c.aside), key=lambda c: c.version)
        resume = bool(self.lives) and bool(self.sim_disk.last or whole)
        experience, version = resumed(self.sim_disk, whole) if resume else (Experience(), 0)
        async with Journal.over(
            mount, commit_ms=config.journal.commit_ms, full_s=config.supervision.stall_s
        ) as journal:
            log = _Log(journal, self.checker, self.sim_disk, mount)
            store = EventStore(experience, log)
            cursor = max(
                (c.cursor for c in whole if c.version == version and not c.aside), default=0
            )
            self.checker.begin(store, version, cursor, self.sim_disk.last)
            if resume:
                begin_again(store, log, version)  # type: ignore[arg-type]
            metrics = Metrics(clock=trio.current_time)
            run = Coordinator(
                config, store, self.prompts(), metrics, process.waits, RunStatistics()
            )
            self.coordinator = run
            async with trio.open_nursery() as nursery:
                self._listening = nursery
                ours, theirs = pipes()
                process.connect(ours)
                self._nursery.start_soon(self._listen, Link(theirs, peer="the coordinator"))
                launcher = Link(ours, peer="the launcher")
                await launcher.send(Hello("coordinator", 0, process.incarnation, 1))
                nursery.start_soon(run.converse, Peer(Hello("launcher", 0, 0, 1), launcher))
                outcome = await run.conduct()
                self.checker.on_outcome(outcome)
                await run.say_goodbye(outcome)
                nursery.cancel_scope.cancel()

    async def _rollout(self, process: SimProcess) -> None:
        link = await self._dial(process)
        engine = self.engine(process)
        process.receiver = receiver = fakes.FakeReceiver(
            self._broadcasts, self.config.publication.deadline_s
        )
        async with link:
            await rollout_actor(
                link, engine, receiver, Reporter(process.waits, report_s(self.config))
            )

    def _engine(self, process: SimProcess) -> Engine:
        process.engine = engine = fakes.FakeEngine(
            self.config, self.checker.keys, self.speeds.pace, process.waits.spent
        )
        engine.loaded = self.checker.on_load
        return engine

    async def _reward(self, process: SimProcess) -> None:
        link = await self._dial(process)
        verifiers = fakes.FakeVerifiers(self.speeds.verdict_s)
        process.verifiers = verifiers
        async with link:
            await reward_actor(
                link,
                verifiers,  # type: ignore[arg-type]
                process.waits,
                Reporter(process.waits, report_s(self.config)),
                concurrency=self.config.reward.concurrency,
                deadline_s=self.config.task.verdict_s,
            )

    async def _trainer(self, process: SimProcess) -> None:
        link = await self._dial(process)
        newest = max(
            (c for c in self.checkpoints if not c.aside), key=lambda c: c.version, default=None
        )
        if newest is not None:
            newest.verify()
        version, weights = (
            (newest.version, newest.weights)
            if newest is not None
            else (0, policy.initial(self.seed))
        )
        learner = fakes.FakeLearner(
            version, weights, self.checker.keys, self.checker, self._broadcasts
        )
        learner.seconds_per_token, learner.step_s = self.speeds.trained_token_s, self.speeds.step_s
        learner.store = partial(self._store, process)
        process.learner = learner
        self.checker.on_start(version, weights)
        async with link:
            await trainer_actor(link, learner, learner, process.waits, Reporter(process.waits))

    async def _store(self, process: SimProcess, learner: fakes.FakeLearner, cursor: int) -> str:
        """Write a checkpoint: complete at once, at the end, or not at all."""
        checkpoint = SimCheckpoint(learner.version, learner.weights, cursor)
        saving, self.saving = self.saving, None
        await trio.sleep(self.speeds.save_s)
        if saving is not None and (reason := await saving(process)):
            raise CheckpointError(reason)
        if process.alive:
            self.checkpoints = [c for c in self.checkpoints if c.version != checkpoint.version] + [
                checkpoint
            ]
            self.checker.written.add(checkpoint.version)
        return f"step-{learner.version}"

    async def _dial(self, process: SimProcess) -> Link:
        await trio.sleep(self.speeds.start_s())
        coordinator = self.processes["coordinator-0"]
        if not coordinator.alive:
            raise LinkError("broken", "nobody answers")
        ours, theirs = pipes()
        process.connect(ours)
        coordinator.connect(theirs)
        self.dialled(process, ours)
        self._listening.start_soon(
            self._attend, _Heard(theirs, process.name, self.start_of(process), self.checker)
        )
        link = Link(ours, peer="the coordinator")
        await link.send(Hello(process.role, process.index, process.incarnation, 1))
        return link

    async def _attend(self, link: Link) -> None:
        assert self.coordinator is not None
        try:
            await self.coordinator.attend(link)
        except* (LinkError, EndOfStream):
            pass
        finally:
            with trio.CancelScope(shield=True):
                await link.aclose()


class _Heard(Link):
    """The coordinator's end of an actor's link, at which the checker listens."""

    def __init__(self, pipe: MemoryPipe, peer: str, start: str, checker: Checker) -> None:
        super().__init__(pipe, peer=peer)
        self._checker, self._sender = checker, start

    async def receive(self) -> tuple[Message, tuple[memoryview, ...]]:
        message, buffers = await super().receive()
        self._checker.on_delivered(self._sender, message)
        return message, buffers

    async def send(self, message: Message, *buffers: Buffer) -> None:
        self._checker.on_told(self._sender, message)
        await super().send(message, *buffers)


class _Log:
    """The journal, and the checker that reads along."""

    def __init__(self, journal: Journal, checker: Checker, sim_disk: SimDisk, mount: Mount) -> None:
        self._journal, self._checker, self._platter, self._mount = journal, checker, sim_disk, mount
        self.abandon, self.compact, self.room = journal.abandon, journal.compact, journal.room

    @property
    def appended(self) -> int:
        return self._journal.appended

    @property
    def durable(self) -> int:
        return self._journal.durable

    def append(self, event: AnyEvent) -> int:
        number = self._journal.append(event)
        self._checker.on_event(number, event)
        return number

    def keep(self, version: int, experience: Experience) -> int:
        number = self._journal.keep(version, experience)
        self._checker.on_keep(version)
        return number

    async def flush(self) -> None:
        target = self.appended
        await self._journal.flush()
        if self._platter.last < target and not self._mount.gone:
            self._checker.violated(
                "what is flushed is on disk",
                f"event {target} is not: the last one there is {self._platter.last}",
            )
