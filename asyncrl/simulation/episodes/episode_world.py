"""One seed of a world of episodes: the coordinator's own parts, and an order in which a seed draws
who acts next and what fails. Invariant: a run is a function of its seed."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np
import trio
from trio.testing import MockClock

from asyncrl.actors.coordinator.chunks import ChunkIntake
from asyncrl.actors.coordinator.engine_pool import EngineHandle, EnginePool
from asyncrl.actors.coordinator.episode_placement import EpisodePlacement
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.actors.coordinator.peers import Roster
from asyncrl.actors.coordinator.pinning import Pinning
from asyncrl.actors.coordinator.placement import Placement
from asyncrl.actors.coordinator.playing import Playing, PlayingLimits
from asyncrl.actors.coordinator.reclaiming import Reclaiming
from asyncrl.actors.coordinator.resume import begin_again
from asyncrl.config import Config
from asyncrl.engines.draws import stream
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.experience.recovery import recovered
from asyncrl.experience.snapshot import Snapshot
from asyncrl.messages import (
    Ask,
    Chunks,
    Enough,
    GiveFailure,
    GiveReward,
    Hello,
    Message,
    Note,
    Played,
    Role,
    Scored,
)
from asyncrl.runtime.processes.standstill import RunClock
from asyncrl.simulation import policy
from asyncrl.simulation.checker.strand_checks import check_sealed
from asyncrl.simulation.episodes.episode_actors import (
    FakeAgentsActor,
    FakeEngineActor,
    MailboxPeer,
)
from asyncrl.simulation.episodes.episode_checker import TEMPERATURE, EpisodeChecker
from asyncrl.simulation.observer import Violation
from asyncrl.simulation.run import silence

STEPS = 30_000
"""Steps after which a run that is not over is stuck."""
TROUBLE = 400
"""Steps within which faults happen."""
LEASE_S = 20.0

_encode = msgspec.msgpack.Encoder().encode
_snapshot = msgspec.msgpack.Decoder(Snapshot)


@dataclass
class EpisodeReport:
    """Report of one seed."""

    seed: int
    steps: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    discarded: dict[str, int] = field(default_factory=dict)
    violation: Violation | None = None


class _Log:
    """A journal in memory, which the checker reads along."""

    def __init__(self, events: list[e.AnyEvent], checker: EpisodeChecker) -> None:
        self._events, self._checker = events, checker

    @property
    def appended(self) -> int:
        return len(self._events)

    durable = appended

    def append(self, event: e.AnyEvent) -> int:
        self._events.append(event)
        self._checker.on_event(len(self._events), event)
        return len(self._events)

    def keep(self, version: int, experience: Experience) -> int:
        return len(self._events)

    def abandon(self, version: int) -> None:
        """Forget nothing: no checkpoint is newer."""

    def compact(self, version: int) -> None:
        """Forget nothing."""

    async def room(self) -> None:
        await trio.lowlevel.checkpoint()

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()


class EpisodeWorld:
    """A run: what outlives its coordinator, and the present coordinator's parts."""

    def __init__(self, seed: int, clock: MockClock) -> None:
        self.draw = draw = random.Random(f"episodes/{seed}")
        self.clock = clock
        self.report = EpisodeReport(seed)
        self.concurrency = draw.choice((1, 2, 4))
        self.limits = PlayingLimits(
            max_calls=draw.choice((3, 8, 8)),
            attempts=draw.choice((2, 3)),
            context_tokens=draw.choice((24, 64)),
        )
        self.group_size, self.groups = draw.choice((1, 2, 3)), draw.choice((1, 2, 4))
        self.budget = draw.choice((6, 16, 40))
        self.config = msgspec.convert(
            {
                "engine": {"kind": "scripted", "slots": draw.choice((4, 1, 8))},
                "rollout": {"attempts": draw.choice((2, 20)), "lease_s": LEASE_S},
            },
            Config,
        )
        self.steady = draw.random() < 0.6
        self.trouble = 0.0 if seed % 10 == 0 else draw.choice((0.02, 0.08))
        self.weights = {version: stream(seed, version) for version in range(64)}
        self.checker = EpisodeChecker(
            self.limits, self.concurrency, self.weights, steady=self.steady
        )
        self._events: list[e.AnyEvent] = []
        self._base, self._based = Experience(), 0  # state at the last publication
        self._engines: dict[str, FakeEngineActor] = {}
        self._agents: dict[str, FakeAgentsActor] = {}
        self._counts = {"rollout": draw.choice((1, 2)), "agents": draw.choice((1, 2))}
        self._incarnations: Counter[str] = Counter()
        self._begin(Experience())

    # -------------------------------------------------------------------------------------- a life

    def _begin(self, experience: Experience) -> None:
        """Start a coordinator with this state, and start all others again."""
        self.store = EventStore(experience, _Log(self._events, self.checker))
        self.roster, self.run_clock = Roster(lambda: None), RunClock()
        self.pool, self.leases = EnginePool(), LeaseTable(LEASE_S)
        self.reclaiming = Reclaiming(self.store, self.pool, self.leases, self.config)
        pinning = Pinning(self.store, self.pool, self.leases, self.reclaiming, self.config)
        self.placement = Placement(
            self.store,
            self.pool,
            self.leases,
            self.reclaiming,
            pinning,
            self.config,
            self.run_clock,
        )
        self.chunks = ChunkIntake(
            self.store,
            self.pool,
            self.leases,
            self.reclaiming,
            self.run_clock,
            vocabulary=policy.VOCABULARY,
            garbled=lambda defect: self.checker.violated("blame", f"a chunk has {defect}"),
        )
        self.playing = Playing(
            self.store,
            EpisodePlacement(self.roster, self.pool, self.run_clock, self.concurrency, math.inf),
            self.reclaiming,
            self.limits,
            lambda group: TEMPERATURE,
            self.run_clock,
        )
        if self._events:
            begin_again(self.store, self.store.log, experience.version or 0)  # type: ignore[arg-type]
        else:
            self._publish(0)
        self._engines.clear()
        self._agents.clear()
        for role, count in self._counts.items():
            for index in range(count):
                self._start(role, index)  # type: ignore[arg-type]

    def _start(self, role: Role, index: int) -> None:
        name = f"{role}-{index}"
        self._incarnations[name] += 1
        hello = Hello(role, index, self._incarnations[name], 1)
        peer = MailboxPeer(hello, self.checker.on_sent)
        if role == "agents":
            self.roster.add(peer)
            self._agents[name] = FakeAgentsActor(peer, unsteady=not self.steady)
            return
        self._engines[name] = engine = FakeEngineActor(peer, self.weights)
        self.pool.add(EngineHandle(peer, self.config.engine.slots))
        engine.version = self.store.experience.version or 0
        self.pool.serve(name, engine.version, pin=False)

    def run(self) -> None:
        """Act until all is over, or something is wrong."""
        while self.report.steps < STEPS and self.checker.violation is None:
            self.report.steps += 1
            if self.report.steps < TROUBLE and self.draw.random() < self.trouble:
                self._fault()
            self._act()
            if self.checker.violation is None:
                self.checker.look(self.store.experience)
            if not self.store.experience.rollouts and self._admitted == self.groups:
                self._settle()
                return
        self.checker.violated("liveness", f"{STEPS} steps, and the run is not over")

    def _settle(self) -> None:
        self._pump()
        self.checker.over(self.store.experience)
        held = [engine.held for engine in self.pool if any(engine.held.values())]
        played = [name for name in self._agents if self.playing.held(name)]
        leaks = held, played, self.leases.oldest(1)
        self.checker.hold("nothing leaks", not any(leaks), "{} are held at the end", leaks)

    @property
    def _admitted(self) -> int:
        return self.store.experience.next_group

    # -------------------------------------------------------------------------------- what is done

    def _act(self) -> None:
        """Have somebody do something."""
        acts: list[Callable[[], None]] = [self._pump, self._pump]
        for engine in self._engines.values():
            acts += [engine.hear] * bool(engine.peer.inbox)
            acts += [partial(engine.act, self.draw)] * 2
            acts += [partial(self._hear, engine)] * bool(engine.outbox)
        for actor in self._agents.values():
            acts += [actor.hear] * bool(actor.peer.inbox)
            acts += [partial(actor.act, self.draw)] * 2
            acts += [partial(self._hear, actor)] * bool(actor.outbox)
        if self._admitted < self.groups:
            acts.append(self._admit)
        if self.report.steps % 50 == 0:
            acts = [self._tick]
        self.draw.choice(acts)()

    def _tick(self) -> None:
        """Let time pass: leases and agents that hang run out."""
        self.clock.jump(LEASE_S * self.draw.choice((0.1, 0.3, 0.6)))
        for name in self.reclaiming.expire(self.run_clock.now(), self.chunks.streamed):
            self._lose_engine(name)
        for actor in self._agents.values():
            actor.expire()

    def _admit(self) -> None:
        x = self.store.experience
        self.store.record(
            e.Admitted(
                group=x.next_group,
                first=x.next_rollout,
                size=self.group_size,
                split="train",
                prompt_index=x.next_group,
                prompt=np.array([x.next_group, 7], np.int32).tobytes(),
                max_new_tokens=self.budget,
                key=1000 * self.report.seed + 100 * x.next_group,
                cursor=x.next_group + 1,
                played=True,
            )
        )

    def _pump(self) -> None:
        """Do what the coordinator's loop does."""
        self.playing.pump(0)
        self.playing.begin("train")
        self.placement.lease("train")
        self.playing.observe()
        for rollout in self.store.experience.to_judge():
            reward = 0.5 if rollout.agent_reward is None else rollout.agent_reward
            self.store.record(e.Judged(rollout.id, Scored(reward)))
        for group in self.store.experience.ready("train"):
            if group.scored:
                self._train([rollout.id for rollout in group.scored])
            else:
                self.store.record(e.Dropped(group.id, "k_min"))

    def _train(self, rollouts: list[int]) -> None:
        """Train these in a step of their own, and publish the version that it makes."""
        x = self.store.experience
        version = x.version or 0
        self.store.record(e.Taken(version, rollouts))
        for rollout in rollouts:
            seen, tokens = x.rollouts[rollout], x.rollouts[rollout].tokens
            masked = sum(sum(strand.mask) for strand in x.groups[seen.group].sequences(seen))
            self.checker.hold("once", masked == tokens, "{} of {} are trained", masked, tokens)
            self.store.record(e.Trained(rollout, tokens, {}))
        self._publish(version + 1)

    def _publish(self, version: int) -> None:
        self.store.record(e.Published(version))
        for engine in self._engines.values():
            engine.version = version
            self.pool.serve(engine.peer.name, version, pin=False)
        self._base = Experience.of(_snapshot.decode(_encode(self.store.experience.snapshot())))
        self._based = len(self._events)

    # -------------------------------------------------------------------------------- the messages

    def _hear(self, actor: FakeAgentsActor | FakeEngineActor) -> None:
        """Handle the next message of an actor."""
        message, buffers = actor.outbox.popleft()
        self.report.kinds[type(message).__name__] += 1
        self.checker.on_handling(actor.peer.name, message, buffers)
        self._handle(actor.peer, message, buffers)
        self.checker.episodes.handled()
        if isinstance(message, Played):
            episode = self.checker.reference.episode(message.rollout)
            if episode is not None and episode.status == "sealed":
                check_sealed(self.checker, episode, self.store.experience)

    def _handle(self, peer: MailboxPeer, message: Message, buffers: tuple[bytes, ...]) -> None:
        match message:
            case Chunks():
                ids, behaviour = (memoryview(buffer) for buffer in buffers)
                self.chunks.on_chunks(peer.name, message, ids, behaviour)
            case Ask() | Enough() | Note() | GiveReward() | GiveFailure() | Played():
                self.playing.on_message(peer, message, buffers)

    # -------------------------------------------------------------------------------------- faults

    def _fault(self) -> None:
        """Have something fail."""
        faults = {
            "agents_actor_dies": self._lose_agents,
            "engine_dies": lambda: self._lose_engine(self.draw.choice(sorted(self._engines))),
            "engine_gives_back": lambda: self.draw.choice(list(self._engines.values())).give_back(),
            "agent_raises": lambda: self._agents_actor().fail(self.draw, "raised"),
            "agent_hangs": lambda: self._agents_actor().hang(self.draw),
            "agent_repeats": lambda: self._agents_actor().repeat(),
            "group_stale": self._drop,
            "coordinator_dies": self._crash,
        }
        kind = self.draw.choice(sorted(faults))
        if faults[kind]() is not False:
            self.report.faults[kind] += 1

    def _agents_actor(self) -> FakeAgentsActor:
        return self.draw.choice(list(self._agents.values()))

    def _lose_agents(self) -> None:
        actor = self._agents_actor()
        self.roster.remove(actor.peer)
        self.playing.lose(actor.peer)
        self._start("agents", actor.peer.index)

    def _lose_engine(self, name: str) -> None:
        engine = self.pool.remove(name)
        assert engine is not None
        self.reclaiming.lose(engine)
        self._start("rollout", engine.peer.index)

    def _drop(self) -> bool:
        """Throw a group away that nobody has trained. Returns False if there is none."""
        groups = sorted(self.store.experience.groups)
        if not groups or self.draw.random() < 0.7:
            return False
        group = self.draw.choice(groups)
        for call in list(self.store.experience.calls.values()):
            if call.group == group and call.holder:
                self.reclaiming.stop(call)
                self.reclaiming.take_back(call, "agent")
        self.store.record(e.Dropped(group, "stale"))
        return True

    def _crash(self) -> None:
        """Kill everybody: the journal has lost its last events."""
        durable = self.draw.randint(max(self._based, len(self._events) - 30), len(self._events))
        del self._events[durable:]
        self.checker.crashed(durable)
        base = Experience.of(_snapshot.decode(_encode(self._base.snapshot())))
        self._begin(recovered(base, self._events[self._based :]))
        self._base = base if self._based > durable else self._base


def play(seed: int) -> EpisodeReport:
    """Run a seed to its end."""
    clock = MockClock()

    async def run() -> EpisodeReport:
        world = EpisodeWorld(seed, clock)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 (whatever the product raises is a violation)
            world.checker.violated("no part raises", repr(error), error)
        report, tokens = world.report, world.store.experience.ledger.tokens
        report.events, report.checks = len(world.checker.events), world.checker.checks
        report.discarded, report.violation = dict(tokens.discarded), world.checker.violation
        await trio.lowlevel.checkpoint()
        return report

    with silence():
        return trio.run(run, clock=clock)
