"""The only gateway to experience. Invariant: every event that is applied is journalled, in that
order, and nothing else changes the state."""

from __future__ import annotations

from typing import Protocol

from asyncrl.experience.events import AnyEvent
from asyncrl.experience.experience import Experience


class EventLog(Protocol):
    """Where events go: the journal, or a list in tests."""

    @property
    def appended(self) -> int:
        """The number of the last event, counted from 1; 0 for none."""
        ...

    @property
    def durable(self) -> int:
        """The number of the last event on disk; 0 for none."""
        ...

    def append(self, event: AnyEvent) -> int:
        """Keep the event; its number. Never waits."""
        ...

    def keep(self, version: int, experience: Experience) -> int:
        """Keep the whole state, as of now, for the checkpoint of `version`; the number of the last
        event."""
        ...

    def compact(self, version: int) -> None:
        """Forget what lies before the state kept for `version`."""
        ...

    async def room(self) -> None:
        """Return when more may be appended: back-pressure for whoever brings events."""
        ...

    async def flush(self) -> None:
        """Return when everything appended is durable."""
        ...


class EventStore:
    """Experience, and its journal."""

    def __init__(self, experience: Experience, log: EventLog) -> None:
        self.experience = experience
        self.log = log

    def record(self, event: AnyEvent) -> None:
        """Apply, then journal. Raises `Refused` and journals nothing where the event is
        impossible."""
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
        """A checkpoint of `version` belongs to the state as it is now."""
        self.log.keep(version, self.experience)

    def compact(self, version: int) -> None:
        """No run goes back behind the checkpoint of `version` any more."""
        self.log.compact(version)
