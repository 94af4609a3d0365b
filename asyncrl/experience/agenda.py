"""What is due next. Invariant: it follows from the live groups alone, so it can be made anew from them and is never written down.

Rollouts and groups are held by their numbers, in sorted lists: the order of each view is the order kept. A rollout gets another status
through `move` and in no other way, so what waits for what, and how much is queued, is right after every event.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from typing import Any

import msgspec

from asyncrl.experience.rollout import ENDED, TOKEN_BYTES, Group, Rollout, Status
from asyncrl.messages import Purpose


def _by_purpose() -> dict[Purpose, list[Any]]:
    return {"train": [], "evaluation": []}


class Agenda(msgspec.Struct):
    """What waits for a lease, for a verdict, for a step.

    `queue_items` and `queue_bytes` measure the experience queue: training rollouts that are sealed or judged, and not taken. `statuses`
    counts live rollouts; a status that none has any more may be there with zero.
    """

    statuses: Counter[Status] = msgspec.field(default_factory=Counter)
    queue_items: int = 0
    queue_bytes: int = 0
    _waiting: dict[Purpose, list[tuple[bool, int]]] = msgspec.field(default_factory=_by_purpose)  # never leased, rollout
    _unjudged: list[tuple[int, int]] = msgspec.field(default_factory=list)  # sealed as, rollout
    _complete: dict[Purpose, list[tuple[int, int]]] = msgspec.field(default_factory=_by_purpose)  # oldest version, group

    def to_lease(self, purpose: Purpose, n: int) -> list[int]:
        """At most `n` waiting rollouts: recycled ones first, then new ones, each the oldest first."""
        return [rollout for _, rollout in self._waiting[purpose][:n]]

    def to_judge(self, after: int) -> list[int]:
        """Rollouts sealed and not judged whose `sealed` number is larger than `after`, the first sealed first."""
        return [rollout for _, rollout in self._unjudged[bisect_left(self._unjudged, (after + 1, 0)) :]]

    def ready(self, purpose: Purpose) -> list[int]:
        """The groups that may be taken: those with the oldest tokens first, then those admitted first."""
        return [group for _, group in self._complete[purpose]]

    def enter(self, group: Group, rollout: Rollout) -> None:
        """A live rollout of this group comes in with the status it has."""
        status = rollout.status
        self.statuses[status] += 1
        if status is Status.WAITING:
            insort(self._waiting[group.purpose], (not rollout.attempt, rollout.id))
        elif status is Status.SEALED:
            insort(self._unjudged, (rollout.sealed, rollout.id))
            self._queue(group, rollout, 1)
        elif status is Status.JUDGED:
            self._queue(group, rollout, 1)

    def move(self, group: Group, rollout: Rollout, status: Status) -> None:
        """The only way from one status to another. While it waits its `attempt` stays, from its sealing on its `sealed` and its tokens."""
        before = rollout.status
        self.statuses[before] -= 1
        if before is Status.WAITING:
            _remove(self._waiting[group.purpose], (not rollout.attempt, rollout.id))
        elif before is Status.SEALED:
            _remove(self._unjudged, (rollout.sealed, rollout.id))
            self._queue(group, rollout, -1)
        elif before is Status.JUDGED:
            self._queue(group, rollout, -1)
        rollout.status = status
        if status not in ENDED:
            self.enter(group, rollout)

    def offer(self, group: Group) -> None:
        """A group that nothing keeps from being taken, once it is complete, is ready."""
        if group.complete:
            insort(self._complete[group.purpose], (group.oldest, group.id))

    def withdraw(self, group: Group) -> None:
        """A group that is ready, and still what it was when it became so, is not any more."""
        _remove(self._complete[group.purpose], (group.oldest, group.id))

    def _queue(self, group: Group, rollout: Rollout, sign: int) -> None:
        if group.purpose == "train":
            self.queue_items += sign
            self.queue_bytes += sign * rollout.tokens * TOKEN_BYTES


def _remove(order: list[Any], key: tuple[int, int]) -> None:
    del order[bisect_left(order, key)]
