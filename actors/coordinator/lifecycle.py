"""The life of a run.

Invariant: it goes INIT → READY → RUN → DRAIN → STOP, never back, and each phase has a deadline.

phase  waits for                      goes on when              at its deadline
-----  -----------------------------  ------------------------  ---------------------------------
INIT   every actor's first coming     all have come             it goes on without rollout actors
                                                                if one has come; else the run fails,
                                                                and names who did not come
READY  the first publication          every engine has weights  the run fails (the watchdog)
RUN    tokens, verdicts and steps     the run is over           the run fails (the watchdog)
DRAIN  the end of each stream, from   the journal is flushed    the next stage begins
       source to sink
STOP   the launcher, which is told    it hangs up               the process ends all the same
       the outcome

A run may be over in any phase, and drains in each case. The stages of a drain follow the data:

    rollouts parked → agents actors, then rollout actors Drained → reward actors Drained
      → the checkpoint, and the trainer Drained → the journal flushed
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from asyncrl.config.schema import SupervisionConfig
from asyncrl.messages import Healable

GOODBYE_S = 10.0
"""Seconds in which the launcher hangs up. It may wait for an actor's end before it does
(`run_supervisor.CAUSE_S`)."""


class Phase(enum.Enum):
    """The place of a run in its life."""

    INIT = "init"
    READY = "ready"
    RUN = "run"
    DRAIN = "drain"
    STOP = "stop"


class Stage(enum.Enum):
    """A part of the drain. Its value is the share of `supervision.grace_s` that has passed when the
    next stage begins at the latest, 0 to 1."""

    PARK = 0.3
    ROLLOUT = 0.4
    REWARD = 0.6
    TRAINER = 0.85
    JOURNAL = 0.95


class Outcome(NamedTuple):
    """The end of a run, and its reason. With `heals`, another life of the run may begin."""

    ok: bool
    reason: str
    heals: Healable | None = None


class OverduePhase(NamedTuple):
    """A phase has lasted too long. `missing` names the actors that never connected; empty if all
    did, and nothing happened afterwards."""

    phase: Phase
    missing: tuple[str, ...]


class Lifecycle:
    """One run's phase. It reads no clock: every method gets the time, in seconds of the run's
    clock."""

    def __init__(self, expected: Iterable[str], settings: SupervisionConfig, now: float) -> None:
        """`expected` are the names of the run's actors."""
        self.expected = tuple(expected)
        self._missing = dict.fromkeys(self.expected)
        self.removed: dict[str, str] = {}
        """The rollout actors that are not restarted, and why. The run continues without them."""
        self._settings = settings
        self.phase = Phase.INIT
        self.since = now

    @property
    def missing(self) -> tuple[str, ...]:
        """The expected actors that have never been ready, and that the run waits for."""
        return tuple(self._missing)

    @property
    def rollout_actors(self) -> int:
        """Count the rollout actors that are left."""
        return sum(name.startswith("rollout-") for name in self.expected) - len(self.removed)

    @property
    def quorum(self) -> bool:
        """True if the run can begin without those that are missing: they are rollout actors, and
        another one has come."""
        missing = [name for name in self._missing if name.startswith("rollout-")]
        return len(missing) == len(self._missing) and len(missing) < self.rollout_actors

    def came(self, name: str, now: float) -> None:
        """Note that an actor is ready for work."""
        self._missing.pop(name, None)
        if self.phase is Phase.INIT and not self._missing:
            self._enter(Phase.READY, now)

    def begin_without(self, now: float) -> tuple[str, ...]:
        """Begin without missing actors, and stop waiting for them. Returns their names. One that
        connects later gets work like any other."""
        missing = self.missing
        for name in missing:
            self.came(name, now)
        return missing

    def remove(self, name: str, why: str, now: float) -> None:
        """Continue without this rollout actor, which is not restarted."""
        self.removed[name] = why
        if self.rollout_actors:
            self.came(name, now)

    def published(self, now: float) -> None:
        """Note that every engine has weights."""
        if self.phase is Phase.READY:
            self._enter(Phase.RUN, now)

    def over(self, now: float) -> None:
        """Begin the drain: the run is over. Raises ValueError if it was already over."""
        if self.ending:
            raise ValueError(f"the run is already over: it is in {self.phase.value}")
        self._enter(Phase.DRAIN, now)

    def drained(self, now: float) -> None:
        """End the drain: nothing is left under way. Raises ValueError if the run was not
        draining."""
        if self.phase is not Phase.DRAIN:
            raise ValueError(f"a run stops after its drain, not after {self.phase.value}")
        self._enter(Phase.STOP, now)

    @property
    def ending(self) -> bool:
        """True if the run is over, so that nothing new begins."""
        return self.phase in (Phase.DRAIN, Phase.STOP)

    def deadline(self, last_activity: float) -> float:
        """The time until which the phase may last. At `last_activity` a token, a verdict or a step
        came last, or the trainer was known to be at work."""
        match self.phase:
            case Phase.INIT:
                return self.since + self._settings.start_s
            case Phase.READY | Phase.RUN:
                return max(self.since, last_activity) + self._settings.stall_s
            case Phase.DRAIN:
                return self.since + self._settings.grace_s
            case Phase.STOP:
                return self.since + GOODBYE_S

    def stage_deadline(self, stage: Stage) -> float:
        """The time at which a stage of the drain, which has begun, is over at the latest."""
        return self.since + self._settings.grace_s * stage.value

    def late(self, last_activity: float, now: float) -> OverduePhase | None:
        """The phase, if it has lasted too long and the run must fail; else None. An ending has
        deadlines of its own, so it is never late."""
        if self.ending or now < self.deadline(last_activity):
            return None
        return OverduePhase(self.phase, self.missing)

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase, self.since = phase, now
