"""Lending as its messages and devices tell of it (`rollout.lending = switch`). Invariant: an engine
that is lent the trainer's devices is given nothing while the trainer has something to do, is told
then to stop what it holds, and stops it; and a trainer that waits lends its devices soon, whatever
was killed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

from asyncrl.experience import events as e
from asyncrl.messages import (
    CloseStep,
    Consumed,
    Interrupt,
    Leases,
    Message,
    MicroBatch,
    ScoredProximal,
    ScoreProximal,
    Stepped,
)
from asyncrl.simulation.checker.checked_run import CheckedRun

if TYPE_CHECKING:
    from asyncrl.actors.coordinator.coordinator import Coordinator

MOMENTS = 3
"""Moments at which an engine has not been told before that counts: a frame may wait for its
turn."""
LENT_S = 1.0
"""Seconds for which a trainer may wait before its devices are lent."""


class LendingWitness:
    """Hears of one life what the trainer has to do, and what is lent meanwhile."""

    def __init__(self, run: CheckedRun) -> None:
        self._run = run
        rollout = run.config.rollout
        first = rollout.actors - rollout.lent_actors
        switched = range(first, rollout.actors) if rollout.lending == "switch" else ()
        self._lent = [f"rollout-{index}" for index in switched]
        self._work = 0  # commands of the trainer that it has not answered
        self._closed = 0  # steps that were closed
        self._asked: dict[str, set[int]] = {name: set() for name in self._lent}
        self._moments = Counter[str]()
        self._stops: defaultdict[str, set[int]] = defaultdict(set)  # by start: heard, and held
        self._waits_since: float | None = None
        self._differs_since = math.inf

    def told(self, start: str, message: Message) -> None:
        """The coordinator tells an actor this."""
        asked = self._asked.get(start.partition("/")[0])
        match message:
            case MicroBatch() | ScoreProximal() | CloseStep():
                self._work += 1
                self._differs_since = math.inf
                if isinstance(message, CloseStep):
                    self._closed = message.step + 1
            case Interrupt(rollouts) if asked is not None:
                asked.update(rollouts)
            case Leases(leases) if asked is not None:
                asked.difference_update(lease.rollout for lease in leases)

    def delivered(self, message: Message) -> None:
        """The coordinator has received this from the trainer."""
        if isinstance(message, Consumed | ScoredProximal | Stepped):
            self._work -= 1

    def heard(self, start: str, message: Message) -> None:
        """An actor has received this from the coordinator."""
        match message:
            case Interrupt(rollouts):
                self._stops[start].update(rollouts)
            case Leases(leases):
                self._stops[start].difference_update(lease.rollout for lease in leases)

    def device(self, start: str, held: Collection[int]) -> None:
        """The engine of an actor has these rollouts on its device."""
        self._stops[start].intersection_update(held)
        self._moments[start] = self._moments[start] + 1 if self._stops[start] else 0
        self._run.hold(
            "lending",
            self._moments[start] <= MOMENTS,
            "{} was told to stop {}, and goes on with it",
            start,
            self._stops[start],
        )

    def compared(self, coordinator: Coordinator) -> None:
        """Compare what the coordinator says is lent with what is open, and with who works."""
        parts, now = coordinator.parts, self._run.clock()
        if parts.stepping is not None:
            self._compare_idle(parts.stepping.idle, now)
        if (status := parts.lent.status(now)) is None:
            return
        both = status.lent and self._work > 0
        self._moments["a loan"] = self._moments["a loan"] + 1 if both else 0
        self._run.hold(
            "lending",
            self._moments["a loan"] <= MOMENTS,
            "the trainer's devices are lent, and it has {} commands",
            self._work,
        )
        handles = [handle for name in self._lent if (handle := parts.engines.get(name)) is not None]
        able = any(handle.version is not None and not handle.draining for handle in handles)
        waits = parts.stepping is not None and parts.stepping.idle and not self._work
        if not (waits and able and status.worth and not status.lent):
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        self._run.hold(
            "lending",
            self._waits_since is None or now - self._waits_since <= LENT_S,
            "the trainer waits since {} s, and its devices are not lent",
            self._waits_since,
        )

    def _compare_idle(self, said: bool, now: float) -> None:
        """Compare whether the trainer is said to wait with whether it does; a message may be under
        way."""
        run, step = self._run, max(self._closed, self._run.version)
        redo = run.store.experience.prescribed is not None
        same = said == (not (self._work or redo) and step < run.config.train.steps)
        self._differs_since = math.inf if same else min(self._differs_since, now)
        run.hold(
            "lending",
            now - self._differs_since <= LENT_S,
            "the trainer has {} commands in step {}, and is said to wait: {}",
            self._work,
            step,
            said,
        )

    def leased(self, event: e.Leased) -> None:
        """A rollout is leased."""
        self._run.hold(
            "lending",
            event.holder not in self._lent or not self._work,
            "{} is given rollout {}, and the trainer has its devices, for {} commands",
            event.holder,
            event.rollout,
            self._work,
        )

    def look(self) -> None:
        """Count a moment for each lent engine that was not told to stop. To be called while the
        coordinator runs."""
        for name in self._lent:
            held = {seen.id for seen in self._run.reference.held(name)}
            owed = bool(self._work and held - self._asked[name])
            self._moments[name] = self._moments[name] + 1 if owed else 0
            self._run.hold(
                "lending",
                self._moments[name] <= MOMENTS,
                "{} was not told to stop {}, and the trainer has its devices",
                name,
                held - self._asked[name],
            )
