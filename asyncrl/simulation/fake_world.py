"""The world of a simulated run: fake prompts, engines, learner and verifiers, and a simulated disk.
Invariant: what does not fail on purpose is exact, so what a run makes of it can be recounted."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import trio

from asyncrl.actors.agents_actor import EpisodePlayer, agents_actor
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.imports import ForeignAnswers
from asyncrl.actors.coordinator.prompts import PromptSource
from asyncrl.actors.coordinator.resume import begin_again, resumed
from asyncrl.actors.reporting import Reporter
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.config import Config
from asyncrl.config.engines import capabilities
from asyncrl.config.losses import credit_of, one_update
from asyncrl.config.mix import members
from asyncrl.engines.protocol import Engine
from asyncrl.experience.events import AnyEvent
from asyncrl.experience.experience import Experience
from asyncrl.explain.curve import Curve, kept, point_of
from asyncrl.explain.run_status import JournalStatus
from asyncrl.journal import Journal
from asyncrl.journal.writer import BeforeCommit
from asyncrl.messages import Role, Split
from asyncrl.runtime.ipc.link import Link
from asyncrl.simulation import fakes, policy
from asyncrl.simulation.fake_foreign import FakeForeign
from asyncrl.simulation.fake_learner import Broadcast, FakeLearner, FakeProximal
from asyncrl.simulation.fake_player import AgentsLost, FakePlayer
from asyncrl.simulation.observer import WorldObserver
from asyncrl.simulation.sim_disk import Mount, SimCheckpoint, SimDisk
from asyncrl.simulation.sim_process import SimProcess
from asyncrl.simulation.world import World
from asyncrl.tasks.mixed import parts_of
from asyncrl.training.checkpoint_index import CheckpointError

BETWEEN_LIVES_S = 1.0
"""Seconds after which a user resumes a run."""


@dataclass
class Speeds:
    """Seconds that fake things take. `pace` draws each request's seconds per token."""

    pace: Callable[[], float] = lambda: 0.02
    verdict_s: float = 0.05
    start_s: Callable[[], float] = lambda: 0.1
    trained_token_s: float = 0.0005
    step_s: float = 0.1
    copy_s: float = 0.01
    send_s: float = 0.02
    """Of the weights of a publication."""
    save_s: float = 0.1
    think_s: Callable[[int], float] = lambda seed: 0.05
    """Draws the seconds between two acts of the agent of a seed."""
    quiet: int = 0
    """The version whose step takes `quiet_s` longer, once; 0: none."""
    quiet_s: float = 3600.0


ALL_REWARDS = policy.Rewards()


class FakeWorld(World):
    """A run of fakes. Its disk and its checkpoints outlive its lives: a life that did not finish is
    resumed by the next, as a user would resume it.

    `engine` makes the engine of each start of a rollout actor. `saving` is awaited by the next
    checkpoint, and returns the sentence that it fails with, or nothing.
    """

    expected: ClassVar[dict[Role, tuple[type[BaseException], ...]]] = World.expected | {
        "rollout": (*World.expected["rollout"], fakes.EngineCrash),
        "reward": (*World.expected["reward"], fakes.VerifiersLost),
        "agents": (*World.expected["agents"], AgentsLost),
    }

    def __init__(
        self,
        seed: int,
        config: Config,
        observer: WorldObserver,
        speeds: Speeds | None = None,
        rewards: policy.Rewards = ALL_REWARDS,
        *,
        steady: bool = True,
        cling: bool = False,
    ) -> None:
        """`steady` agents, where there are any, do the same in each attempt, and those that `cling`
        leave calls open at their end."""
        super().__init__(config, observer)
        self.seed, self.speeds, self.rewards = seed, speeds or Speeds(), rewards
        self.steady, self.cling = steady, cling
        self.sim_disk = SimDisk()
        self.checkpoints: list[SimCheckpoint] = []
        self.engine: Callable[[SimProcess], Engine] = self._fake_engine
        self.saving: Callable[[SimProcess], Awaitable[str]] | None = None
        self._task = fakes.FakeTask(config)
        self._curve = Curve()
        self._journal: Journal
        self._broadcasts: dict[int, Broadcast] = {}
        self._quiet = self.speeds.quiet

    def start_s(self, process: SimProcess) -> float:
        return self.speeds.start_s()

    def prompts(self) -> PromptSource:
        task = self.config.task
        return PromptSource(
            self._task,
            self._task,
            seed=self.seed,
            epochs=task.epochs,
            curriculum=task.curriculum,
            parts=parts_of(task, self._size),
            stages=task.stages,
        )

    def foreign(self) -> ForeignAnswers | None:
        return FakeForeign(self.config) if self.config.foreign.path else None

    def _size(self, label: str, split: Split) -> int:
        """The prompts of one of several tasks."""
        member = members(self.config.task)[label]
        return member.train_size if split == "train" else member.eval_size

    @asynccontextmanager
    async def open_store(self, process: SimProcess) -> AsyncIterator[EventStore]:
        """The journal on the simulated disk, and the state that it and the checkpoints give."""
        mount = Mount(self.sim_disk)

        def dead() -> None:
            mount.gone = True
            self.observer.on_death()

        process.on_death = dead
        self._broadcasts = {}
        whole = self._whole()
        resume = bool(self.lives) and bool(self.sim_disk.last or whole)
        experience, version = resumed(self.sim_disk, whole) if resume else (Experience(), 0)
        before_commit = self._open_curve(mount, version, experience.closed)
        async with Journal.over(
            mount,
            commit_ms=self.config.journal.commit_ms,
            full_s=self.config.supervision.stall_s,
            before_commit=before_commit,
        ) as journal:
            self._journal = journal
            log = _ObservedLog(journal, self.observer, self.sim_disk, mount)
            store = EventStore(experience, log)
            last = self.sim_disk.last
            begun = [c for c in whole if c.version == version and not c.aside]
            for checkpoint in begun:
                if checkpoint.cursor > last:
                    # made again by a life of which the disk has nothing: the first one's state is
                    # what the journal has
                    checkpoint.cursor = {v: n for n, v in self.sim_disk.snapshots()}[version]
            cursor = max((checkpoint.cursor for checkpoint in begun), default=0)
            self.observer.on_begin(store, version, cursor, last, self._curve.evaluated)
            if resume:
                begin_again(store, log, version)  # type: ignore[arg-type]
            yield store

    def _open_curve(self, mount: Mount, version: int, published: int) -> BeforeCommit:
        """Begin with what a resumed run keeps of the curve; new lines wait for a commit, as those
        of `asyncrl.explain.curve_file` do."""
        lines = self.sim_disk.lines = list(kept(self.sim_disk.lines, version, published))
        unwritten: list[bytes] = []
        self._curve = Curve(filter(None, map(point_of, lines)), unwritten.append)

        async def write(forced: bool) -> None:
            if self.sim_disk.full:
                raise OSError(errno.ENOSPC, "the simulated disk is full")
            if not mount.gone:
                lines.extend(unwritten)
                unwritten.clear()

        return write

    def curve(self) -> Curve:
        return self._curve

    def journal_status(self) -> JournalStatus:
        return JournalStatus(given_up=self._journal.given_up)

    def _whole(self) -> list[SimCheckpoint]:
        """The checkpoints that are somebody's, the oldest version first."""
        return sorted((c for c in self.checkpoints if not c.aside), key=lambda c: c.version)

    def make_engine(self, process: SimProcess) -> Engine:
        return self.engine(process)

    def _fake_engine(self, process: SimProcess) -> Engine:
        process.engine = engine = fakes.FakeEngine(
            self.config,
            self.speeds.pace,
            process.waits.idle_for,
            keeps_versions=capabilities(self.config.engine.kind).keeps_versions,
        )
        engine.loaded = partial(self.observer.on_load, self.start_of(process))
        engine.written = partial(self.observer.on_written, self.start_of(process))
        engine.resumed = partial(self.observer.on_resumed, self.start_of(process))
        engine.averaged = partial(self.observer.on_average, self.start_of(process))
        return engine

    def make_receiver(self, process: SimProcess) -> fakes.FakeReceiver:
        process.receiver = fakes.FakeReceiver(
            self._broadcasts,
            self.config.publication.deadline_s,
            partial(self.observer.on_let_go, self.start_of(process)),
        )
        return process.receiver

    def make_verifiers(self, process: SimProcess) -> fakes.FakeVerifiers:
        process.verifiers = fakes.FakeVerifiers(
            self.speeds.verdict_s, self.rewards, self.observer, self.start_of(process)
        )
        return process.verifiers

    async def play(self, link: Link, process: SimProcess) -> None:
        """Be the product's agents actor, with agents that are scripted."""
        if self.agents is not None:
            await super().play(link, process)
            return
        sessions, reporter = PlayedSessions(b"the run's key"), Reporter(process.waits)
        process.player = FakePlayer(
            sessions,
            self.speeds.think_s,
            self.observer.on_agent_end,
            steady=self.steady,
            ends=credit_of(self.config.train).of_branches,
            clients=self._nursery if self.cling else None,
        )
        episodes = EpisodePlayer(
            process.player,
            sessions,
            no_text,
            reporter,
            url="",
            episode_s=self.config.agent.episode_s,
        )
        await agents_actor(link, episodes, sessions, reporter)

    def make_learner(self, process: SimProcess) -> FakeLearner:
        """A learner with the weights of the newest checkpoint, and the scores in it."""
        version, weights = 0, policy.initial(self.seed)
        staleness = self.config.staleness
        proximal = (
            FakeProximal(max(1, staleness.max_lag)) if staleness.proximal == "boundary" else None
        )
        if whole := self._whole():
            whole[-1].verify()
            version, weights = whole[-1].version, whole[-1].weights
            proximal = whole[-1].proximal and whole[-1].proximal.copy()
        process.learner = learner = FakeLearner(
            version,
            weights,
            self.observer,
            self._broadcasts,
            proximal,
            start=self.start_of(process),
            holds=not one_update(self.config.train),
        )
        learner.seconds_per_token, learner.step_s = self.speeds.trained_token_s, self._step_s
        learner.copy_s = self.speeds.copy_s
        learner.write_checkpoint = partial(self._write, process)
        learner.send_s = self.speeds.send_s
        self.observer.on_start(version, weights)
        return learner

    def _step_s(self, version: int) -> float:
        """Seconds of the step that makes a version."""
        if version == self._quiet:
            self._quiet = 0
            return self.speeds.step_s + self.speeds.quiet_s
        return self.speeds.step_s

    async def _write(
        self,
        process: SimProcess,
        version: int,
        weights: int,
        cursor: int,
        proximal: FakeProximal | None,
    ) -> str:
        """Write a checkpoint: complete at once, at the end, or not at all."""
        checkpoint = SimCheckpoint(version, weights, cursor, proximal)
        saving, self.saving = self.saving, None
        await trio.sleep(self.speeds.save_s)
        if saving is not None and (reason := await saving(process)):
            raise CheckpointError(reason)
        if process.alive:
            others = [c for c in self.checkpoints if c.version != version]
            self.checkpoints = [*others, checkpoint]
            self.observer.on_checkpoint(version, weights)
        return f"step-{version}"


async def no_text(
    split: Split, prompt_index: int
) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    """The text of a prompt and its entry: scripted agents need none."""
    await trio.lowlevel.checkpoint()
    return "", {}, []


class _ObservedLog:
    """The journal, and the observer that reads along."""

    def __init__(
        self, journal: Journal, observer: WorldObserver, sim_disk: SimDisk, mount: Mount
    ) -> None:
        self._journal, self._observer = journal, observer
        self._sim_disk, self._mount = sim_disk, mount
        self.abandon, self.compact, self.room = journal.abandon, journal.compact, journal.room

    @property
    def appended(self) -> int:
        return self._journal.appended

    @property
    def durable(self) -> int:
        durable = self._journal.durable
        if self._sim_disk.last < durable and not self._mount.gone:
            self._observer.violated(
                "what is durable is on disk",
                f"event {durable} is not: the last one there is {self._sim_disk.last}",
            )
        return durable

    def append(self, event: AnyEvent) -> int:
        number = self._journal.append(event)
        assert self.durable < number
        self._observer.on_event(number, event)
        return number

    def keep(self, version: int, experience: Experience) -> int:
        number = self._journal.keep(version, experience)
        self._observer.on_keep(version)
        return number

    async def flush(self) -> None:
        target = self.appended
        await self._journal.flush()
        if self._sim_disk.last < target and not self._mount.gone:
            self._observer.violated(
                "what is flushed is on disk",
                f"event {target} is not: the last one there is {self._sim_disk.last}",
            )
