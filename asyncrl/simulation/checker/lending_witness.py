"""Lending as its messages tell of it (`rollout.lending = switch`). Invariant: an engine that is
lent the trainer's devices is given nothing while the trainer has something to do, and is told then
to stop what it holds.
"""

from __future__ import annotations

from collections import Counter

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

MOMENTS = 3
"""Moments at which an engine has not been told before that counts: a frame may wait for its
turn."""


class LendingWitness:
    """Hears of one life what the trainer has to do, and what is lent meanwhile."""

    def __init__(self, run: CheckedRun) -> None:
        self._run = run
        rollout = run.config.rollout
        first = rollout.actors - rollout.lent_actors
        switched = range(first, rollout.actors) if rollout.lending == "switch" else ()
        self._lent = [f"rollout-{index}" for index in switched]
        self._work = 0  # commands of the trainer that it has not answered
        self._asked: dict[str, set[int]] = {name: set() for name in self._lent}
        self._moments = Counter[str]()

    def told(self, start: str, message: Message) -> None:
        """The coordinator tells an actor this."""
        asked = self._asked.get(start.partition("/")[0])
        match message:
            case MicroBatch() | ScoreProximal() | CloseStep():
                self._work += 1
            case Interrupt(rollouts) if asked is not None:
                asked.update(rollouts)
            case Leases(leases) if asked is not None:
                asked.difference_update(lease.rollout for lease in leases)

    def delivered(self, message: Message) -> None:
        """The coordinator has received this from the trainer."""
        if isinstance(message, Consumed | ScoredProximal | Stepped):
            self._work -= 1

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
