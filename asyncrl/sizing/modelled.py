"""A modelled cluster in virtual time: it measures how fast a run would go, the lag of its tokens,
and their outcomes. Invariant: the coordinator, the actors and their links are the product's
own; modelled are engines, and the seconds of the learner and the verifiers.

The measurement is between the publication of one version and that of a later one, so the beginning
of the run is not in it. The ledger is checked every second and at the end. Nothing is written down,
because no life follows.
"""

from __future__ import annotations

import gc
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import msgspec
import trio

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.config import Config
from asyncrl.config.chunk_tokens import chunk_tokens
from asyncrl.config.lending import is_lent
from asyncrl.engines.protocol import Engine
from asyncrl.experience.events import AnyEvent
from asyncrl.experience.experience import Experience
from asyncrl.explain.run_status import JournalStatus
from asyncrl.messages import Scored
from asyncrl.simulation import policy
from asyncrl.simulation.fake_learner import FakeLearner
from asyncrl.simulation.fake_world import FakeWorld, Speeds
from asyncrl.simulation.fakes import FakeTask, FakeVerifiers
from asyncrl.simulation.observer import WorldObserver
from asyncrl.simulation.run import silence
from asyncrl.simulation.scripted_agents import ScriptedAgents
from asyncrl.simulation.sim_process import SimProcess
from asyncrl.simulation.task_order import replayable
from asyncrl.simulation.virtual_clock import VirtualClock
from asyncrl.simulation.world import LifeOutcome
from asyncrl.sizing.cluster_models import ClusterModel
from asyncrl.sizing.lockstep import LockstepEngine
from asyncrl.sizing.meter import ActorSeconds, Measured, Meter
from asyncrl.tasks.prompt import Prompt

GROUPS, MEMBERS = 64, 8
"""Groups of a step, and members of a group."""
PROMPTS = 10**5
"""Prompts of a modelled run, whose order is drawn at its start: ten times as many take half a
second."""
BLOCK = 32
"""Prompts of which exactly the modelled share passes the filter."""
LIMIT_S = 1e7
"""Virtual seconds after which a run is stuck."""


def configured(engines: int, slots: int, longest: int, **sections: dict[str, object]) -> Config:
    """A run of `GROUPS` groups of `MEMBERS` a step, of which nothing is filtered, evaluated or
    written down; `longest` is the longest response. Micro-batches hold about an eighth of a step
    if that is ten times the mean. `sections` add settings, or change these. Raises ConfigError
    for settings that contradict each other."""
    settings: dict[str, dict[str, object]] = {
        "task": {"eval_size": 0, "train_size": PROMPTS},
        "engine": {
            "kind": "scripted",
            "slots": slots,
            "chunk_tokens": max(1, longest // 20),
            "context_tokens": longest + 16,
        },
        "rollout": {
            "actors": engines,
            "group_size": MEMBERS,
            "max_new_tokens": longest,
            "filter": "none",
            "lease_s": 1e5,
        },
        "train": {
            "steps": 10**6,
            "batch_groups": GROUPS,
            "eval_every": 0,
            "checkpoint_every": 0,
            "micro_tokens": 6 * longest,
        },
        "supervision": {"stall_s": 1e5},
        "reward": {"concurrency": 10**5},
    }
    return msgspec.convert(
        {name: settings.get(name, {}) | sections.get(name, {}) for name in settings | sections},
        Config,
    )


class UnwrittenLog:
    """An event log that writes nothing: each event is durable at once, and only counted and told to
    an observer."""

    def __init__(self, observer: WorldObserver) -> None:
        self._observer = observer
        self.appended = 0

    @property
    def durable(self) -> int:
        return self.appended

    def append(self, event: AnyEvent) -> int:
        self.appended += 1
        self._observer.on_event(self.appended, event)
        return self.appended

    def keep(self, version: int, experience: Experience) -> int:
        return self.appended

    def compact(self, version: int) -> None:
        """Do nothing: there is nothing to drop."""

    async def room(self) -> None:
        await trio.lowlevel.checkpoint()

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely inside the block. Nearly all objects of a run live on, and scanning
    them took two fifths of the time."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class ModelledWorld(FakeWorld):
    """A world whose engines, lengths, learner, verifiers and network are those of `models`, with
    `trainers` devices that train. Its tokens are all alike. Engines that are lent the trainer's
    cores (`rollout.lent_actors`) pause while it computes. `beat_s` is that of the engines."""

    def __init__(
        self,
        config: Config,
        observer: WorldObserver,
        models: ClusterModel,
        trainers: float = 1.0,
        beat_s: float = 0.0,
    ) -> None:
        train, network = config.train, models.network
        speeds = Speeds(
            verdict_s=models.verdict.seconds,
            trained_token_s=models.trainer.token_us * 1e-6 * train.passes / trainers,
            step_s=models.trainer.step_s,
            send_s=network.send_s,
        )
        super().__init__(config.run.seed, config, observer, speeds)
        self._models, self._beat_s = models, beat_s
        self._length = models.length.drawn(config.run.seed, config.rollout.max_new_tokens)
        self._drawn = random.Random(config.run.seed)
        self._passes: dict[int, bool] = {}
        self._block: list[bool] = []
        self._carried = 0.5
        self.engine = self._lockstep
        self._task = _LongPrompts(config, models.length.prompt)
        self._engines: dict[str, LockstepEngine] = {}
        self._lent: list[LockstepEngine] = []

    @asynccontextmanager
    async def open_store(self, process: SimProcess) -> AsyncIterator[EventStore]:
        """An empty state, of which nothing is written down."""
        self._broadcasts = {}
        store = EventStore(Experience(), UnwrittenLog(self.observer))
        self.observer.on_begin(store, 0, 0, 0)
        yield store

    def journal_status(self) -> JournalStatus:
        return JournalStatus()

    def _lockstep(self, process: SimProcess) -> Engine:
        config = self.config
        engine = self._engines[self.start_of(process)] = LockstepEngine(
            self._length,
            self._models.engine,
            slots=config.engine.slots,
            context_tokens=config.engine.context_tokens,
            chunk_tokens=chunk_tokens(config),
            vocab_size=policy.VOCABULARY,
            idle=process.waits.idle_for,
            swap_s=self._models.network.swap_s,
            recompute=config.engine.kv == "recompute",
            beat_s=self._beat_s,
        )
        if is_lent(config, process.index):
            self._lent.append(engine)
        return engine

    def make_learner(self, process: SimProcess) -> FakeLearner:
        learner = super().make_learner(process)
        learner.computing, learner.batch_s = self._computing, self._models.trainer.batch_s
        return learner

    def _computing(self, seconds: float) -> None:
        for engine in self._lent:
            engine.pause(seconds)

    def make_verifiers(self, process: SimProcess) -> FakeVerifiers:
        process.verifiers = FakeVerifiers(
            self.speeds.verdict_s, self, self.observer, self.start_of(process)
        )
        return process.verifiers

    def scored(self, prompt_index: int, ids: bytes) -> Scored:
        """The verdict on an answer: 0 and 1 by turns for a prompt that should pass the filter, and
        0 for others."""
        if prompt_index not in self._passes:
            self._passes[prompt_index] = self._passing()
            self._right = False
        self._right = not self._right
        return Scored(float(self._right and self._passes[prompt_index]))

    def _passing(self) -> bool:
        """True if the next new prompt passes the filter. In each BLOCK of prompts the share is that
        of the models, in random order: chance in the long run would only blur the means."""
        if not self._block:
            self._carried += BLOCK * self._models.verdict.share(self.config.rollout.group_size)
            passing, self._carried = int(self._carried), self._carried % 1.0
            self._block = [True] * passing + [False] * (BLOCK - passing)
            self._drawn.shuffle(self._block)
        return self._block.pop()

    def actor_seconds(self) -> ActorSeconds:
        """The seconds of actors so far."""
        idle = {name: process.waits.idle() for name, process in self.processes.items()}
        return ActorSeconds(
            idle["trainer-0"].get("command", 0.0),
            sum(
                waits.get(cause, 0.0)
                for name, waits in idle.items()
                if name.startswith("rollout")
                for cause in ("requests", "weights")
            ),
            sum(engine.busy_s for engine in self._engines.values()),
            sum(engine.decoding_s for engine in self._lent)
            / max(1, self.config.rollout.lent_actors),
        )


class _LongPrompts(FakeTask):
    """Prompts of `tokens` tokens, or a few if that is 0."""

    def __init__(self, config: Config, tokens: int) -> None:
        super().__init__(config)
        self._tokens = tokens

    def encode(self, prompt: Prompt) -> list[int]:
        ids = super().encode(prompt)
        return ids + [1] * (self._tokens - len(ids))


def measure(
    config: Config,
    models: ClusterModel,
    *,
    first: int,
    last: int,
    agents: ScriptedAgents | None = None,
) -> Measured:
    """Run the cluster from its start to the publication of version `last`, and measure from that of
    `first` on; the run must have more steps than that. `agents` play, if given. Raises RuntimeError
    if an invariant does not hold, or the run ends before."""
    with replayable(config.run.seed), silence(), rare_collections():
        return trio.run(
            partial(_run, config, models, first, last, agents),
            clock=VirtualClock(),
            strict_exception_groups=True,
        )


async def _run(
    config: Config, models: ClusterModel, first: int, last: int, agents: ScriptedAgents | None
) -> Measured:
    meter = Meter(lambda: world.actor_seconds(), last)
    world = ModelledWorld(config, meter, models)
    world.agents = agents
    reason = f"it had not ended after {LIMIT_S:g} virtual seconds"
    with trio.move_on_after(LIMIT_S):
        reason = await live(world, meter)
    marks = {mark.version: mark for mark in meter.marks}
    if meter.violation is not None or last not in marks:
        raise RuntimeError(f"the run did not get to version {last}: {reason}") from meter.violation
    return meter.measured(marks[first], marks[last])


async def live(world: ModelledWorld, meter: Meter) -> str:
    """Run a modelled world until it ends or its meter stops it. Returns the reason of its end."""
    ended: LifeOutcome | None = None
    async with trio.open_nursery() as nursery:
        meter.stop = nursery.cancel_scope.cancel
        ended = await world.life()
    return ended.reason if ended else "its meter stopped it"
