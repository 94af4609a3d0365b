"""A modelled cluster in virtual time: it measures how fast a run would go, the lag of its tokens,
and what becomes of them. Invariant: the coordinator, the actors and their links are the product's
own; modelled are engines, and the seconds of the learner and the verifiers.

The measurement is between the publication of one version and that of a later one, so the beginning
of the run is not in it. The ledger is checked every second and at the end.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import trio
from trio.testing import MockClock

from actors.coordinator.event_store import EventStore
from asyncrl.config import Config
from asyncrl.config.rules import contradictions
from asyncrl.engines.draws import stream
from asyncrl.engines.protocol import Engine
from asyncrl.experience import events as e
from asyncrl.ipc.messages import StatusUpdate
from asyncrl.journal.disk import EventRows, Keep, Write
from asyncrl.simulation import policy
from asyncrl.simulation.capacity.lockstep import LockstepEngine
from asyncrl.simulation.fake_world import FakeWorld, Speeds
from asyncrl.simulation.observer import WorldObserver
from asyncrl.simulation.run import silence
from asyncrl.simulation.scripted_agents import ScriptedAgents
from asyncrl.simulation.sim_disk import SimDisk
from asyncrl.simulation.sim_process import SimProcess
from asyncrl.simulation.task_order import replayable
from staleness.lag import rollout_lag, tokens_by_lag

SIGMA = 1.0
GROUPS, MEMBERS = 64, 8
"""Of a step."""
LIMIT_S = 1e7
"""Virtual seconds after which a run is stuck."""
_NORMAL = NormalDist()


def lognormal(seed: int, mean: float, most: int) -> Callable[[int], int]:
    """Lengths in tokens of responses, by their keys: lognormal (sigma = 1) of that mean, cut at
    `most`; at least 1."""
    middle = math.log(mean) - SIGMA**2 / 2

    def length(key: int) -> int:
        share = (stream(seed, key) + 1) / (2**64 + 2)
        return min(most, max(1, round(math.exp(middle + SIGMA * _NORMAL.inv_cdf(share)))))

    return length


def roofline(memory_s: float, slot_s: float) -> Callable[[int], float]:
    """Seconds of a decode step: what reading the weights takes, or, where more slots are busy than
    hide behind that, so much for each."""
    return lambda busy: max(memory_s, busy * slot_s)


def configured(engines: int, slots: int, longest: int, **sections: dict[str, object]) -> Config:
    """A run of `GROUPS` groups of `MEMBERS` a step, of which nothing is filtered, evaluated or
    written down; `longest` is the longest response. Micro-batches hold about an eighth of a step
    where that is ten times the mean. `sections` add settings, or change these. Raises ValueError
    for what contradicts itself."""
    settings: dict[str, dict[str, object]] = {
        "task": {"eval_size": 0, "train_size": 10**6},
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
    config = msgspec.convert(
        {name: settings.get(name, {}) | sections.get(name, {}) for name in settings | sections},
        Config,
    )
    for keys, why in contradictions(config):
        raise ValueError(f"{' and '.join(keys)}: {why}")
    return config


@dataclass(frozen=True)
class Measured:
    """Measurement of a run from one published version to another, `steps` later.

    `rollout_s` are the seconds in which a step had a published version to start from, and not yet
    all that it takes: the time of generation, where that stands still otherwise. `arrived` counts
    the tokens that a step took by their lag, `heads` the rollouts by that of their oldest token.
    `discarded` are tokens by reason, `discarded_before` those until the first version; `live` are
    those at the end that nothing has become of yet.
    """

    steps: int
    seconds: float
    trainer_idle_s: float
    rollout_s: float
    generated: int
    trained: int
    discarded: Mapping[str, int]
    discarded_before: Mapping[str, int]
    live: int
    arrived: Mapping[int, int]
    heads: Mapping[int, int]
    events: int
    checks: int

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps

    @property
    def idle(self) -> float:
        """Share of the trainer's time."""
        return self.trainer_idle_s / self.seconds

    @property
    def masked(self) -> float:
        """Share of the tokens that something became of which never reached a loss."""
        lost = sum(self.discarded.values())
        return lost / (lost + self.trained)

    @property
    def head_lag(self) -> float:
        """Mean lag of a rollout's oldest token."""
        return _mean(self.heads)

    @property
    def lag(self) -> float:
        """Mean lag of a token that a step took, in a loss or not."""
        return _mean(self.arrived)

    @property
    def largest_lag(self) -> int:
        return max(self.heads)


def _mean(counts: Mapping[int, int]) -> float:
    return sum(value * count for value, count in counts.items()) / sum(counts.values())


class LedgerChecker(WorldObserver):
    """Checks the ledger alone, once a second. `lineage` are the weights of each version."""

    store: EventStore

    def __init__(self) -> None:
        super().__init__()
        self.count = 0  # events
        self.tokens_trained = 0
        self.lineage: dict[int, int] = {}

    def on_begin(
        self,
        store: EventStore,
        version: int,
        cursor: int,
        last: int,
        evaluated: Collection[int] = (),
    ) -> None:
        self.store = store

    def on_start(self, version: int, weights: int) -> None:
        self.lineage[version] = weights

    def on_event(self, number: int, event: e.AnyEvent) -> None:
        self.count += 1
        if isinstance(event, e.Trained):
            self.tokens_trained += event.trained

    def on_status(self, update: StatusUpdate) -> None:
        self.check()

    def on_step(self, version: int, weights: int) -> None:
        self.lineage[version] = weights

    def check(self) -> None:
        """The ledger balances, and has trained what was journalled as trained."""
        ledger = self.store.experience.ledger
        self.hold("ledger", ledger.balances(), "the ledger does not balance")
        self.hold(
            "ledger",
            ledger.tokens.trained == self.tokens_trained,
            "{} tokens are trained",
            ledger.tokens.trained,
        )


class _Sample(NamedTuple):
    """Counts of a run when a version was published."""

    version: int
    at: float
    idle_s: float
    rollout_s: float
    generated: int
    trained: int
    discarded: Counter[str]


class _Meter(LedgerChecker):
    """Measures between the publications of versions `first` and `last`."""

    def __init__(self, first: int, last: int, idle_s: Callable[[], float]) -> None:
        super().__init__()
        self._first, self._last, self._idle_s = first, last, idle_s
        self.marks: list[_Sample] = []
        self._rollout_s = self._published = self._taken = 0.0
        self.arrived: Counter[int] = Counter()
        self.heads: Counter[int] = Counter()

    def on_event(self, number: int, event: e.AnyEvent) -> None:
        super().on_event(number, event)
        now = trio.current_time()
        if isinstance(event, e.Taken):
            self._taken = now
        elif isinstance(event, e.Published):
            self._rollout_s += max(0.0, self._taken - self._published)
            self._published = now
        if isinstance(event, e.Taken) and self._first <= event.step < self._last:
            for id in event.rollouts:
                spans = self.store.experience.rollouts[id].spans
                self.arrived.update(tokens_by_lag(spans, event.step))
                self.heads[rollout_lag(spans, event.step)] += 1
        elif isinstance(event, e.Published) and (
            event.version == self._first if not self.marks else event.version == self._last
        ):
            tokens = self.store.experience.ledger.tokens
            before = now, self._idle_s(), self._rollout_s
            mark = _Sample(
                event.version, *before, tokens.total, tokens.trained, Counter(tokens.discarded)
            )
            self.marks.append(mark)
            if len(self.marks) == 2:
                self.check()
                live = sum(rollout.tokens for rollout in self.store.experience.rollouts.values())
                self.hold(
                    "ledger",
                    live == tokens.live,
                    "{} tokens are live, and the ledger has {}",
                    live,
                    tokens.live,
                )
                self.stop()


class NullDisk(SimDisk):
    """A disk that forgets at once: nothing is resumed from it."""

    newest = 0

    @property
    def last(self) -> int:
        return self.newest

    def write(self, write: Write) -> None:
        match write:
            case EventRows(first, count):
                self.newest = first + count - 1
            case Keep(number):
                self.newest = max(self.newest, number)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely inside the block. Nearly all objects of a run live on, and looking at
    them took two fifths of the time."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def measure(
    config: Config,
    length: Callable[[int], int],
    decode_s: Callable[[int], float],
    speeds: Speeds,
    *,
    first: int,
    last: int,
    prefill_token_s: float = 0.0,
    agents: ScriptedAgents | None = None,
) -> Measured:
    """Run the cluster from its start to the publication of version `last`, and measure from that of
    `first` on, the run's steps being more than that. `length` gives a response's tokens by its key,
    `decode_s` the seconds of a decode step with so many slots busy, and `prefill_token_s` those in
    which an engine reads a token that a request comes with. `agents` play, if they are given.
    Raises RuntimeError where an invariant does not hold, or the run ends before."""
    with replayable(config.run.seed), silence(), rare_collections():
        clock = MockClock(autojump_threshold=0)
        return trio.run(
            partial(_run, config, length, decode_s, speeds, first, last, prefill_token_s, agents),
            clock=clock,
            strict_exception_groups=True,
        )


async def _run(
    config: Config,
    length: Callable[[int], int],
    decode_s: Callable[[int], float],
    speeds: Speeds,
    first: int,
    last: int,
    prefill_token_s: float,
    agents: ScriptedAgents | None,
) -> Measured:
    def trainer_idle_s() -> float:
        return world.processes["trainer-0"].waits.idle().get("command", 0.0)

    def engine(process: SimProcess) -> Engine:
        return LockstepEngine(
            length,
            decode_s,
            slots=config.engine.slots,
            context_tokens=config.engine.context_tokens,
            chunk_tokens=config.engine.chunk_tokens,
            vocab_size=policy.VOCABULARY,
            idle=process.waits.spent,
            prefill_token_s=prefill_token_s,
        )

    meter = _Meter(first, last, trainer_idle_s)
    world = FakeWorld(config.run.seed, config, meter, speeds)
    world.sim_disk, world.engine, world.agents = NullDisk(), engine, agents
    reason = f"nothing came of it in {LIMIT_S:g} virtual seconds"
    with trio.move_on_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            meter.stop = nursery.cancel_scope.cancel
            ending = await world.life()
            reason = ending.reason
    if meter.violation is not None or len(meter.marks) < 2:
        raise RuntimeError(f"the run did not get to version {last}: {reason}") from meter.violation
    begin, end = meter.marks
    return Measured(
        steps=end.version - begin.version,
        seconds=end.at - begin.at,
        trainer_idle_s=end.idle_s - begin.idle_s,
        rollout_s=end.rollout_s - begin.rollout_s,
        generated=end.generated - begin.generated,
        trained=end.trained - begin.trained,
        discarded=end.discarded - begin.discarded,
        discarded_before=begin.discarded,
        live=meter.store.experience.ledger.tokens.live,
        arrived=meter.arrived,
        heads=meter.heads,
        events=meter.count,
        checks=sum(meter.checks.values()),
    )
