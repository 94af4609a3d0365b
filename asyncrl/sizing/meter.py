"""A meter of modelled runs. Invariant: it measures between the publications of two versions, so
that it begins and ends in the same moment of a step; and the ledger balances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import trio

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.experience import events as e
from asyncrl.messages import Message, StatusUpdate
from asyncrl.simulation.observer import WorldObserver
from asyncrl.staleness.lag import rollout_lag, tokens_by_lag

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True)
class Measured:
    """Measurement of a run from one published version to another, `steps` later.

    `rollout_s` are the seconds between a publication and the moment when the next step had all its
    rollouts: the time of generation, if that pauses otherwise. `engines_idle_s`
    are those in which engines had nothing to decode, `busy_s` those of decode steps, for each busy
    slot; both are sums over all engines. `lent_s` are those in which engines on the trainer's
    cores decoded, in their mean. `arrived` counts the tokens that a step took by their lag, `heads`
    the rollouts by that of their oldest token.
    `discarded` are tokens by reason, `discarded_before` those until the first version; `live` are
    those without an outcome at the end.
    """

    steps: int
    seconds: float
    trainer_idle_s: float
    engines_idle_s: float
    busy_s: float
    lent_s: float
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

    def slower(self, tempo: float) -> Measured:
        """The same measurement of a run in which everything takes `tempo` times as long."""
        return replace(
            self,
            seconds=self.seconds * tempo,
            trainer_idle_s=self.trainer_idle_s * tempo,
            engines_idle_s=self.engines_idle_s * tempo,
            busy_s=self.busy_s * tempo,
            lent_s=self.lent_s * tempo,
            rollout_s=self.rollout_s * tempo,
        )

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps

    @property
    def idle(self) -> float:
        """Share of the trainer's time."""
        return self.trainer_idle_s / self.seconds

    @property
    def idle_cores(self) -> float:
        """Share of the trainer's time in which nothing runs on its cores."""
        return max(0.0, self.trainer_idle_s - self.lent_s) / self.seconds

    @property
    def masked(self) -> float:
        """Share of the tokens with an outcome that never reached a loss."""
        lost = sum(self.discarded.values())
        return lost / max(1, lost + self.trained)

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
        return max(self.heads, default=0)


def _mean(counts: Mapping[int, int]) -> float:
    return sum(value * count for value, count in counts.items()) / max(1, sum(counts.values()))


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
        """Check that the ledger balances, and agrees with the journal on trained tokens."""
        ledger = self.store.experience.ledger
        self.hold("ledger", ledger.balances(), "the ledger does not balance")
        self.hold(
            "ledger",
            ledger.tokens.trained == self.tokens_trained,
            "{} tokens are trained",
            ledger.tokens.trained,
        )


class ActorSeconds(NamedTuple):
    """Seconds of actors since the run began: in which the trainer waited for work, in which engines
    waited, of decode steps for each busy slot, and in which engines on the trainer's cores decoded,
    in their mean."""

    trainer_idle: float
    engines_idle: float
    busy: float
    lent: float


class PublicationMark(NamedTuple):
    """Counts of a run when a version was published."""

    version: int
    at: float
    seconds: ActorSeconds
    rollout_s: float
    generated: int
    trained: int
    discarded: Counter[str]


class Meter(LedgerChecker):
    """Measures between publications. `seconds` reads those of the actors. The run is stopped at the
    publication of version `last`, if given, or at the first at which `stop` says so, of the moments
    of all publications and the `units` of work: events, and messages to the coordinator.
    """

    def __init__(
        self,
        seconds: Callable[[], ActorSeconds],
        last: int | None = None,
        *,
        stop: Callable[[Sequence[float], int], bool] = lambda moments, units: False,
    ) -> None:
        super().__init__()
        self._seconds, self._last, self._enough = seconds, last, stop
        self.marks: list[PublicationMark] = []
        self._moments: list[float] = []
        self._heard = 0
        self.enough = False
        """True if it has stopped the run."""
        self._rollout_s = self._published = self._taken = 0.0
        self._arrived: dict[int, Counter[int]] = {}  # by step
        self._heads: dict[int, Counter[int]] = {}

    def on_event(self, number: int, event: e.AnyEvent) -> None:
        super().on_event(number, event)
        now = trio.current_time()
        if isinstance(event, e.Taken):
            self._taken = now
            arrived = self._arrived.setdefault(event.step, Counter())
            heads = self._heads.setdefault(event.step, Counter())
            for id in event.rollouts:
                spans = self.store.experience.rollouts[id].spans
                arrived.update(tokens_by_lag(spans, event.step))
                heads[rollout_lag(spans, event.step)] += 1
        elif isinstance(event, e.Published):
            self._rollout_s += max(0.0, self._taken - self._published)
            self._published = now
            tokens = self.store.experience.ledger.tokens
            before = now, self._seconds(), self._rollout_s
            self.marks.append(
                PublicationMark(
                    event.version, *before, tokens.total, tokens.trained, Counter(tokens.discarded)
                )
            )
            self._moments.append(now)
            if event.version == self._last or self._enough(self._moments, self.units):
                self.end()

    def on_delivered(self, start: str, message: Message, buffers: Sequence[Buffer]) -> None:
        self._heard += 1

    @property
    def units(self) -> int:
        return self.count + self._heard

    def end(self) -> None:
        """Check what there is, and stop the run."""
        self.check_live()
        self.enough = True
        self.stop()

    def check_live(self) -> None:
        """Check the ledger, and that it counts the live tokens."""
        self.check()
        tokens = self.store.experience.ledger.tokens
        live = sum(rollout.tokens for rollout in self.store.experience.rollouts.values())
        self.hold(
            "ledger",
            live == tokens.live,
            "{} tokens are live, and the ledger has {}",
            live,
            tokens.live,
        )

    def measured(self, begin: PublicationMark, end: PublicationMark) -> Measured:
        """The measurement from one publication to a later one."""
        arrived, heads = Counter[int](), Counter[int]()
        for step in range(begin.version, end.version):
            arrived.update(self._arrived.get(step, {}))
            heads.update(self._heads.get(step, {}))
        return Measured(
            steps=end.version - begin.version,
            seconds=end.at - begin.at,
            trainer_idle_s=end.seconds.trainer_idle - begin.seconds.trainer_idle,
            engines_idle_s=end.seconds.engines_idle - begin.seconds.engines_idle,
            busy_s=end.seconds.busy - begin.seconds.busy,
            lent_s=end.seconds.lent - begin.seconds.lent,
            rollout_s=end.rollout_s - begin.rollout_s,
            generated=end.generated - begin.generated,
            trained=end.trained - begin.trained,
            discarded=end.discarded - begin.discarded,
            discarded_before=begin.discarded,
            live=self.store.experience.ledger.tokens.live,
            arrived=arrived,
            heads=heads,
            events=self.count,
            checks=sum(self.checks.values()),
        )
