"""The only way to change experience.

Invariant: every event that is applied is journalled, in that order, and nothing else changes the
state.
"""

from __future__ import annotations

from typing import Protocol

from asyncrl.actors.coordinator.outcome_watch import OutcomeWatch
from asyncrl.experience.events import AnyEvent
from asyncrl.experience.experience import Experience


class EventLog(Protocol):
    """The sink of events: the journal, or a list in tests."""

    @property
    def appended(self) -> int:
        """The number of the last event, counted from 1; 0 for none."""
        ...

    @property
    def durable(self) -> int:
        """The number of the last event on disk; 0 for none."""
        ...

    def append(self, event: AnyEvent) -> int:
        """Append the event. Returns its number. Never waits."""
        ...

    def keep(self, version: int, experience: Experience) -> int:
        """Store the whole current state for the checkpoint of `version`. Returns the number of the
        last event."""
        ...

    def compact(self, version: int) -> None:
        """Drop everything before the state kept for `version`."""
        ...

    async def room(self) -> None:
        """Return when more may be appended. Producers of events wait here."""
        ...

    async def flush(self) -> None:
        """Return when everything appended is durable."""
        ...


class EventStore:
    """The state of all rollouts, and its journal."""

    def __init__(self, experience: Experience, log: EventLog) -> None:
        self.experience = experience
        self.log = log
        self.outcomes = OutcomeWatch()

    def record(self, event: AnyEvent) -> None:
        """Apply an event, then journal it. Raises ImpossibleEvent, and journals nothing, if it
        cannot happen."""
        self.outcomes.hear(event, self.experience)
        self.experience.apply(event)
        self.log.append(event)

    @property
    def cursor(self) -> int:
        """The number of the last event."""
        return self.log.appended

    @property
    def durable(self) -> int:
        """The number of the last event that survives the death of any process."""
        return self.log.durable

    def keep(self, version: int) -> None:
        """Store the current state for the checkpoint of `version`."""
        self.log.keep(version, self.experience)

    def compact(self, version: int) -> None:
        """Drop events from before the checkpoint of `version`, which no run needs any more."""
        self.log.compact(version)
