"""Leases as their messages tell of them. Invariant: an engine that has lost a rollout, or is to go
home, is told to stop it; one that leaves is given nothing; and a lease ends by its deadline only
when that has come.
"""

from __future__ import annotations

import math
from collections import Counter

from asyncrl.experience import events as e
from asyncrl.messages import Chunks, Drain, Hello, Interrupt, Leases, Leaving, Message
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.reference_rollouts import ReferenceCall

ENOUGH, MULTIPLE, FLOOR_S = 100, 4.0, 30.0
"""Leases from which a deadline follows from how long they took; then it is so many times what 95 %
of them took, and at least so many seconds."""
MOMENTS = 3
"""Moments at which a debt is seen before it counts: a frame may wait for its turn."""


class LeaseWitness:
    """Hears the leases of one life."""

    def __init__(self, run: CheckedRun) -> None:
        self._run = run
        self._starts: dict[str, str] = {}  # by name, of connected actors
        self._leaving = set[str]()  # starts that said so
        self._asked: dict[str, set[int]] = {}  # by start: rollouts that it was told to stop
        self._owed: dict[tuple[str, int], tuple[float, int]] = {}  # since when, and the moments
        self._took: list[float] = []
        self._due_s: dict[int, float] = {}  # by rollout: seconds of its lease at least
        self._since: dict[int, float] = {}
        self._streamed: dict[str, float] = {}  # by start
        self._garbage = Counter[str]()  # messages that may have been garbage, by start

    # ------------------------------------------------------------------------------------- messages

    def told(self, start: str, message: Message) -> None:
        """The coordinator tells an actor this."""
        asked = self._asked.setdefault(start, set())
        match message:
            case Interrupt(rollouts):
                asked.update(rollouts)
                for rollout in rollouts:
                    self._owed.pop((start, rollout), None)
            case Leases(leases):
                asked.difference_update(lease.rollout for lease in leases)
            case Drain() if start.startswith("rollout"):
                held = self._held(start)
                self._run.hold(
                    "leases", held <= asked, "{} is sent home, and was not told to stop {}", start,
                    held - asked,
                )  # fmt: skip

    def delivered(self, start: str, message: Message) -> None:
        """The coordinator has received this from an actor."""
        if isinstance(message, Hello):
            self._starts[start.partition("/")[0]] = start
        elif isinstance(message, Leaving):
            self._leaving.add(start)
        elif isinstance(message, Chunks):
            if self._garbage[start] < self._run.garbled[start]:
                self._garbage[start] += 1  # which may be what has come, and is nothing streamed
            else:
                self._streamed[start] = self._run.clock()

    def hung_up(self, start: str) -> None:
        """An actor's connection is over: it is owed nothing more."""
        self._owed = {debt: at for debt, at in self._owed.items() if debt[0] != start}
        name = start.partition("/")[0]
        if self._starts.get(name) == start:
            del self._starts[name]

    def _held(self, start: str) -> set[int]:
        name = start.partition("/")[0]
        if self._starts.get(name) != start:
            return set()
        return {seen.id for seen in self._run.reference.held(name)}

    # --------------------------------------------------------------------------------------- events

    def leased(self, event: e.Leased) -> None:
        """A rollout is leased."""
        start = self._starts.get(event.holder, "")
        self._run.hold(
            "leases", start not in self._leaving, "{} leaves, and is given rollout {}", start,
            event.rollout,
        )  # fmt: skip
        config, now = self._run.config.rollout, self._run.clock()
        took = sorted(self._took[-1000:])
        due = config.lease_s
        if len(took) >= ENOUGH:
            due = min(due, max(FLOOR_S, MULTIPLE * took[-(-len(took) * 95 // 100) - 1]))
        self._since[event.rollout], self._due_s[event.rollout] = now, due

    def sealed(self, seen: ReferenceCall) -> None:
        """A leased rollout is complete."""
        if seen.id in self._since:
            self._took.append(self._run.clock() - self._since.pop(seen.id))

    def ended(self, seen: ReferenceCall, reason: str, *, failed: bool) -> None:
        """A leased rollout is taken back or buried, for a reason."""
        lasted = self._run.clock() - self._since.pop(seen.id, math.inf)
        brought = len(seen.versions) > seen.before
        start = self._starts.get(seen.holder, "")
        if reason == "lease_expired":
            due = self._due_s[seen.id]
            self._run.hold(
                "leases",
                lasted > due - 1e-6,
                "rollout {}'s lease ran out after {} s of {}",
                seen.id,
                lasted,
                due,
            )
            if brought:
                self._took.append(lasted)
        if reason == "actor_lost" or not start:
            return
        asked = seen.id in self._asked.get(start, ())
        if reason == "interrupted":
            self._run.hold(
                "attempts",
                not (failed and asked),
                "rollout {} is said to have failed, and was given back as it was told to",
                seen.id,
            )
            excused = failed or brought or asked or self._queued(seen)
        else:
            excused = asked and reason != "lease_expired"
        if not excused:
            self._owed[start, seen.id] = self._run.clock(), 0

    def _queued(self, seen: ReferenceCall) -> bool:
        """True if its turn at a slot may not have come yet."""
        held = self._run.reference.held(seen.holder)
        before = sum(other.lease < seen.lease for other in held)
        _, ended = self._run.ended_now(seen.holder, seen.lease, "")
        return before + ended >= self._run.config.engine.slots

    def look(self) -> None:
        """Count a moment for each debt. To be called while the coordinator runs."""
        now = self._run.clock()
        for debt, (at, moments) in list(self._owed.items()):
            if now > at:
                self._owed[debt] = now, moments + 1
                self._run.hold(
                    "leases",
                    moments < MOMENTS,
                    "{} has lost rollout {}, and was not told to stop it",
                    *debt,
                )

    def silent(self, start: str) -> None:
        """An engine is blamed for having streamed nothing in the whole time of a lease."""
        quiet = self._run.clock() - self._streamed.get(start, -math.inf)
        least = min(FLOOR_S, self._run.config.rollout.lease_s)
        self._run.hold(
            "blame", quiet > least - 1e-6, "{} is blamed, and streamed {} s ago", start, quiet
        )
