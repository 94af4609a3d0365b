"""A world: the coordinator and the actors of a run as tasks of one process, supervised by the
product's own `RunSupervisor`. Invariant: only the actors' parts differ from real processes; the
coordinator, the actors, their links and the supervision are the product's own.

    life   one start of the run: a coordinator, its actors and their supervisor; it ends as a run
           ends
    world  what outlives a life. A life that did not finish may be resumed by another

`World` leaves open of what parts an actor is made; `asyncrl.simulation.fake_world` has fake ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import trio

from asyncrl.actors.coordinator.components import Observers
from asyncrl.actors.coordinator.coordinator import Coordinator
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.imports import ForeignAnswers
from asyncrl.actors.coordinator.lifecycle import Outcome
from asyncrl.actors.coordinator.peers import Peer
from asyncrl.actors.coordinator.prompts import PromptSource
from asyncrl.actors.coordinator.statistics import RunStatistics
from asyncrl.actors.errors import CoordinatorLost
from asyncrl.actors.notice import GONE
from asyncrl.actors.reporting import Reporter, report_s
from asyncrl.actors.reward_actor import reward_actor
from asyncrl.actors.rollout_actor import rollout_actor
from asyncrl.actors.trainer_actor import trainer_actor
from asyncrl.config import Config
from asyncrl.engines.protocol import Engine
from asyncrl.explain.curve import Curve
from asyncrl.explain.metrics import Metrics
from asyncrl.explain.run_status import JournalStatus
from asyncrl.journal import JournalError
from asyncrl.messages import Hello, Message, Replace, Role, StatusUpdate
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import WaitExpired
from asyncrl.runtime.processes.healing import Healing
from asyncrl.runtime.processes.run_supervisor import RunSupervisor
from asyncrl.runtime.processes.supervisor import Child
from asyncrl.simulation.network import MemoryPipe, pipes
from asyncrl.simulation.observer import WorldObserver
from asyncrl.simulation.scripted_agents import ScriptedAgents
from asyncrl.simulation.sim_process import SimProcess, leaves
from asyncrl.weightsync.reception import RECEPTIONS
from asyncrl.weightsync.transport import Receiver

if TYPE_CHECKING:
    from typing_extensions import Buffer

BESIDE = 1_000
"""Added to the number of a start that its supervisor did not make."""


@dataclass(frozen=True)
class LifeOutcome:
    """End of a life: `finished` is True if the coordinator said so itself. `heals`: the next life
    begins by itself."""

    finished: bool
    ok: bool
    reason: str
    heals: bool = False


class World(ABC):
    """One run. `life` runs it once; `processes` are its actors, by name, the newest start of each.

    Subclasses say what an actor is made of, and what may end it besides a lost connection
    (`expected`). Whatever else ends an actor is a violation.
    """

    expected: ClassVar[dict[Role, tuple[type[BaseException], ...]]] = {
        "coordinator": (JournalError,),
        "rollout": (CoordinatorLost, LinkError),
        "reward": (CoordinatorLost, LinkError, WaitExpired),
        "agents": (CoordinatorLost, LinkError),
        "trainer": (CoordinatorLost, LinkError),
        "launcher": (),
    }

    def __init__(self, config: Config, observer: WorldObserver) -> None:
        self.config, self.observer = config, observer
        self.lives: list[LifeOutcome] = []
        self.processes: dict[str, SimProcess] = {}
        self.coordinator: Coordinator | None = None
        self.supervisor: RunSupervisor
        self.healing = Healing(config.supervision.heals)
        self.agents: ScriptedAgents | None = None
        """The agents of a run whose rollouts are episodes; None where nobody plays."""
        self.dialled: Callable[[SimProcess, MemoryPipe], None] = lambda process, pipe: None
        """Hears of each actor's new end of a connection, before anything is sent."""

    # ------------------------------------------------------------------------------------ the parts

    @abstractmethod
    def prompts(self) -> PromptSource:
        """The prompts of the run."""

    def foreign(self) -> ForeignAnswers | None:
        """The answers that may join groups; None where there are none."""
        return None

    @abstractmethod
    def open_store(self, process: SimProcess) -> AbstractAsyncContextManager[EventStore]:
        """The state that a coordinator starts from, and the journal that it writes."""

    @abstractmethod
    def make_engine(self, process: SimProcess) -> Engine:
        """The engine of a rollout actor."""

    @abstractmethod
    def make_receiver(self, process: SimProcess) -> Receiver:
        """Reception of weights by a rollout actor."""

    @abstractmethod
    def make_learner(self, process: SimProcess) -> Any:
        """The learner of a trainer, which sends its weights, too:
        `asyncrl.actors.trainer_actor.Learner` and `asyncrl.weightsync.transport.Publisher`. Raises
        CheckpointError where it cannot start."""

    def make_judge(self, process: SimProcess) -> Any:
        """The judge that a reward actor asks (`asyncrl.judges`); None if it has none."""
        return None

    @abstractmethod
    def make_verifiers(self, process: SimProcess) -> Any:
        """The verifiers of a reward actor, with the `judge` of a
        `asyncrl.actors.verifier_process.VerifierPool`."""

    async def play(self, link: Link, process: SimProcess) -> None:
        """Be an agents actor at the end of its link. Raises RuntimeError where nobody plays."""
        if self.agents is None:
            raise RuntimeError("no agent plays in this world")
        await self.agents.serve(link, process.waits)

    def curve(self) -> Curve:
        """The curve of the run so far, to which the coordinator adds."""
        return Curve()

    def start_s(self, process: SimProcess) -> float:
        """Seconds that an actor takes from its start until it connects."""
        return 0.0

    def journal_status(self) -> JournalStatus:
        """The state of the journal of this life."""
        return JournalStatus()

    async def conduct(self, coordinator: Coordinator) -> Outcome:
        """Have the coordinator conduct its run."""
        return await coordinator.conduct()

    # -------------------------------------------------------------------------------------- a life

    async def life(self) -> LifeOutcome:
        """Start the run, and return when it is over or cannot go on."""
        self.processes, self.coordinator = {}, None
        if self.lives and not self.lives[-1].heals:  # somebody has started a launcher
            self.healing = Healing(self.config.supervision.heals)
        self.supervisor = RunSupervisor(self.config, self, self, self.healing.lost)
        self._ended_by = "the user's grace period was over"
        try:
            end = await self.supervisor.run()
        finally:
            for process in self.processes.values():
                process.kill()
        heals = self.healing.again(end)
        if end.finished is not None:
            outcome = LifeOutcome(end.finished.ok, end.finished.ok, end.finished.reason, heals)
        else:
            outcome = LifeOutcome(False, False, str(end.failure or self._ended_by), heals)
        self.lives.append(outcome)
        return outcome

    def kill_everything(self) -> None:
        """Lose the machine's power."""
        self._ended_by = "everything was killed"
        for process in self.processes.values():
            process.kill()
        self.supervisor.cancel()

    def start_of(self, process: SimProcess) -> str:
        """The name of one start of an actor in one life, such as `rollout-1/0/2`."""
        return f"{process.name}/{process.incarnation}/{len(self.lives)}"

    def double(self, process: SimProcess) -> SimProcess:
        """Start an actor once more, beside the first, without its supervisor, which has no start of
        that number."""
        return self.start(process.role, process.index, process.incarnation + BESIDE)

    def alive(self, role: Role | None = None) -> list[SimProcess]:
        """The actors that run now."""
        return [p for p in self.processes.values() if p.alive and (role is None or p.role == role)]

    async def connect(self, hello: Hello, process: SimProcess | None = None) -> Link:
        """Connect to the coordinator, as the actor `process` or as a stranger. Raises LinkError
        where the coordinator is dead."""
        coordinator = self.processes["coordinator-0"]
        if not coordinator.alive:
            raise LinkError("broken", "nobody answers")
        ours, theirs = pipes()
        coordinator.connect(theirs)
        if process is None:
            self._listening.start_soon(self._attend, Link(theirs, peer="a stranger"))
        else:
            process.connect(ours)
            self.dialled(process, ours)
            start = self.start_of(process)
            observed = _ObservedLink(theirs, process.name, start, self.observer)
            self._listening.start_soon(self._attend, observed)
        link = (
            Link(ours, peer="the coordinator")
            if process is None
            else _HearingLink(ours, self.start_of(process), self.observer)
        )
        await link.send(hello)
        return link

    # ---------------------------------------------------------------------------------- RunActors

    async def open(self, nursery: trio.Nursery) -> None:
        """Have the tasks of actors run in this nursery."""
        self._nursery = nursery
        await trio.lowlevel.checkpoint()

    async def ready(self, role: Role) -> None:
        """Return at once: a task needs nothing that takes time."""
        await trio.lowlevel.checkpoint()

    def start(self, role: Role, index: int, incarnation: int) -> SimProcess:
        """Start one actor as a task."""
        mains: dict[Role, Callable[[SimProcess], Awaitable[None]]] = {
            "coordinator": self._coordinator,
            "rollout": self._rollout,
            "reward": self._reward,
            "agents": self._agents,
            "trainer": self._trainer,
        }
        process = SimProcess(role, index, incarnation, self.failed)
        self.processes[process.name] = process
        self._nursery.start_soon(process.run, mains[role])
        return process

    def failed(self, process: SimProcess, error: BaseException) -> None:
        """An error ended an actor."""
        for leaf in leaves(error):
            if not isinstance(leaf, self.expected[process.role]):
                self.observer.violated(
                    "no actor ends by an error that nobody injected",
                    f"{process.name}: {leaf!r}",
                    leaf,
                )

    # -------------------------------------------------------------------------------- RunObserver

    def on_status(self, update: StatusUpdate) -> None:
        self.healing.stepped(update.step)
        self.observer.on_status(update)

    def on_replace(self, message: Replace) -> None:
        start = f"{message.role}-{message.index}/{message.incarnation}/{len(self.lives)}"
        self.observer.on_blame(start, message.reason)

    def on_failure(self, name: str, code: int, restarting: bool, child: Child) -> None:
        return  # an error was given to `failed`

    # ---------------------------------------------------------------------------------- the actors

    async def _coordinator(self, process: SimProcess) -> None:
        async with self.open_store(process) as store:
            metrics = Metrics(clock=trio.current_time)
            self.coordinator = coordinator = Coordinator(
                self.config,
                store,
                self.prompts(),
                process.waits,
                Observers(metrics, RunStatistics(), self.curve(), self.journal_status),
                self.foreign(),
            )
            ours, theirs = pipes()
            process.connect(ours)
            self._nursery.start_soon(self._supervised, Link(theirs, peer="the coordinator"))
            launcher = Link(ours, peer="the launcher")
            try:
                await self._told(process, coordinator, launcher)
            finally:
                await coordinator.give_up(launcher)

    async def _told(self, process: SimProcess, coordinator: Coordinator, launcher: Link) -> None:
        """Conduct the run, and tell the launcher."""
        async with trio.open_nursery() as nursery:
            self._listening = nursery
            await launcher.send(Hello("coordinator", 0, process.incarnation, 1))
            nursery.start_soon(coordinator.converse, Peer(Hello("launcher", 0, 0, 1), launcher))
            outcome = await self.conduct(coordinator)
            self.observer.on_outcome(outcome)
            await coordinator.say_goodbye(outcome)
            nursery.cancel_scope.cancel()

    async def _supervised(self, link: Link) -> None:
        """Be the supervisor's end of the coordinator's link."""
        try:
            await self.supervisor.converse(link)
        except* (LinkError, EndOfStream):
            pass
        await link.aclose()

    async def _attend(self, link: Link) -> None:
        """Be the coordinator's end of an actor's link."""
        assert self.coordinator is not None
        try:
            await self.coordinator.attend(link)
        except* (LinkError, EndOfStream):
            pass
        finally:
            if isinstance(link, _ObservedLink):
                self.observer.on_hung_up(link.start)
            with trio.CancelScope(shield=True):
                await link.aclose()

    async def _dial(self, process: SimProcess) -> Link:
        await trio.sleep(self.start_s(process))
        hello = Hello(process.role, process.index, process.incarnation, 1)
        return await self.connect(hello, process)

    async def _rollout(self, process: SimProcess) -> None:
        link = await self._dial(process)
        engine, receiver = self.make_engine(process), self.make_receiver(process)
        reporter = Reporter(process.waits, report_s(self.config))
        async with link:
            reception = RECEPTIONS[self.config.publication.path](engine, receiver, link.send)
            told_to_end = process.noticed.wait
            await rollout_actor(link, engine, reception, reporter, told_to_end=told_to_end)
        if process.noticed.is_set():
            process.exit(GONE)

    async def _reward(self, process: SimProcess) -> None:
        link = await self._dial(process)
        verifiers = self.make_verifiers(process)
        async with link:
            await reward_actor(
                link,
                verifiers,
                process.waits,
                Reporter(process.waits, report_s(self.config)),
                concurrency=self.config.reward.concurrency,
                deadline_s=self.config.task.verdict_s,
                judge=self.make_judge(process),
            )

    async def _agents(self, process: SimProcess) -> None:
        link = await self._dial(process)
        async with link:
            await self.play(link, process)

    async def _trainer(self, process: SimProcess) -> None:
        link = await self._dial(process)
        learner = self.make_learner(process)
        async with link:
            await trainer_actor(link, learner, learner, process.waits, Reporter(process.waits))


class _ObservedLink(Link):
    """The coordinator's end of an actor's link, at which the observer listens."""

    def __init__(self, pipe: MemoryPipe, peer: str, start: str, observer: WorldObserver) -> None:
        super().__init__(pipe, peer=peer)
        self._observer, self.start = observer, start

    async def receive(self) -> tuple[Message, tuple[memoryview, ...]]:
        message, buffers = await super().receive()
        self._observer.on_delivered(self.start, message, buffers)
        return message, buffers

    async def send(self, message: Message, *buffers: Buffer) -> None:
        self._observer.on_told(self.start, message, buffers)
        await super().send(message, *buffers)


class _HearingLink(Link):
    """An actor's end of its link, at which the observer listens."""

    def __init__(self, pipe: MemoryPipe, start: str, observer: WorldObserver) -> None:
        super().__init__(pipe, peer="the coordinator")
        self._observer, self._start = observer, start

    async def receive(self) -> tuple[Message, tuple[memoryview, ...]]:
        message, buffers = await super().receive()
        self._observer.on_heard(self._start, message)
        return message, buffers
