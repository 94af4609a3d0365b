"""Window of admission: how far out of turn a step may take groups.

With `staleness.window = W` nothing is taken that was admitted W groups or more after the oldest
that is not done. Steps wait for that one, and lag has a bound (docs/lag.md). With 0 nothing
finished waits for anything unfinished.

Example: W = 3, and the oldest group that is not taken is the 5th. The groups 5, 6 and 7 may be
taken; the 8th waits until the 5th is taken or leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.config import Config
from asyncrl.experience.group import Group
from asyncrl.experience.rollout import Rollout


class Window:
    """Window of one choice. It moves on with what is chosen, before a step has taken that."""

    def __init__(self, store: EventStore, config: Config) -> None:
        self._experience, self._groups = store.experience, config.staleness.window
        self._chosen: set[int] = set()

    def admit(
        self,
        waiting: list[tuple[Group, list[Rollout]]],
        keep: Callable[[Group, list[Rollout]], list[Rollout]],
    ) -> Iterator[list[Rollout]]:
        """Yield of the units that are `waiting`, in this order, and lie in the window what `keep`
        says can be trained. What lies outside comes as soon as the window reaches it."""
        while waiting:
            outside, end = [], self._end()
            for group, unit in waiting:
                if group.ordinal >= end:
                    outside.append((group, unit))
                    continue
                if kept := keep(group, unit):
                    yield kept
                    # the others leave with it, and so do a complete group's without a verdict
                    leaving = group.unscored if group.complete else ()
                    self._chosen.update(rollout.id for rollout in (*unit, *leaving))
                end = self._end()
            if len(outside) == len(waiting):
                return
            waiting = outside

    def _end(self) -> float:
        """First place in the order of admission that is outside."""
        oldest = self._experience.oldest(self._chosen) if self._groups else None
        return math.inf if oldest is None else oldest.ordinal + self._groups
