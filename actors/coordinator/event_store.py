"""The only way to change experience.

Invariant: every event that is applied is journalled, in that order, and nothing else changes the
state.
"""

from __future__ import annotations

from typing import Protocol

from asyncrl.experience.events import AnyEvent
from asyncrl.experience.experience import Experience


class EventLog(Protocol):
    """The place where events go: the journal, or a list in tests."""

    @property
    def appended(self) -> int:
        """The number of the last event, counted from 1; 0 for none."""
        ...

    @property
    def durable(self) -> int:
        """The number of the last event on disk; 0 for none."""
        ...

    def append(self, event: AnyEvent) -> int:
        """Keep the event. Returns its number. Never waits."""
        ...

    def keep(self, version: int, experience: Experience) -> int:
        """Keep the whole present state for the checkpoint of `version`. Returns the number of the
        last event."""
        ...

    def compact(self, version: int) -> None:
        """Forget what lies before the state kept for `version`."""
        ...

    async def room(self) -> None:
        """Return when more may be appended. A task that brings events waits here."""
        ...

    async def flush(self) -> None:
        """Return when everything appended is durable."""
        ...


class EventStore:
    """The state of all rollouts, and its journal."""

    def __init__(self, experience: Experience, log: EventLog) -> None:
        self.experience = experience
        self.log = log

    def record(self, event: AnyEvent) -> None:
        """Apply an event, then journal it. Raises ImpossibleEvent, and journals nothing, if it
        cannot happen."""
        self.experience.apply(event)
        self.log.append(event)

    @property
    def cursor(self) -> int:
        """The number of the last event."""
        return self.log.appended

    @property
    def durable(self) -> int:
        """The number of the last event that no death of a process undoes."""
        return self.log.durable

    def keep(self, version: int) -> None:
        """Keep the present state, to which a checkpoint of `version` belongs."""
        self.log.keep(version, self.experience)

    def compact(self, version: int) -> None:
        """Forget events from before the checkpoint of `version`: no run goes back behind it."""
        self.log.compact(version)
