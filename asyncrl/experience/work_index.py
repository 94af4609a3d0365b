"""Sorted lists of the work that is due. Invariant: they follow from the live groups alone, so they
are derived from these and never stored.

Rollouts, calls and groups are held by their numbers, in the order in which the state returns them.
Only `move` changes their status. So the lists, and the size of the queue, are correct after every
event.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from typing import Any

import msgspec

from asyncrl.experience.call import TOKEN_BYTES, Call, RolloutStatus
from asyncrl.experience.group import Group
from asyncrl.experience.rollout import ENDED, Rollout
from asyncrl.messages import Split


def _by_split() -> dict[Split, list[Any]]:
    return {"train": [], "evaluation": []}


class WorkIndex(msgspec.Struct):
    """Calls that wait for a lease, rollouts that wait for an agent, a verdict or a step, groups
    that a rule may let grow or that foreign answers may join, and complete groups.

    `queue_items` and `queue_bytes` measure the experience queue: training rollouts that are sealed
    or judged, and not taken. `statuses` counts live rollouts and agents' calls of each status; a
    status may be present with zero. `open` counts the rollouts of each split that no step has
    taken.
    """

    statuses: Counter[RolloutStatus] = msgspec.field(default_factory=Counter)
    queue_items: int = 0
    queue_bytes: int = 0
    open: Counter[Split] = msgspec.field(default_factory=Counter)
    # (never leased, first member of its group or an agent's call, call)
    _waiting: dict[Split, list[tuple[bool, int, int]]] = msgspec.field(default_factory=_by_split)
    # (never begun, first member of its group, rollout)
    _unbegun: dict[Split, list[tuple[bool, int, int]]] = msgspec.field(default_factory=_by_split)
    # (number of its sealing, rollout)
    _unjudged: list[tuple[int, int]] = msgspec.field(default_factory=list)
    # (oldest version, rollout)
    _judged: list[tuple[int, int]] = msgspec.field(default_factory=list)
    _undecided: list[int] = msgspec.field(default_factory=list)
    _importing: list[int] = msgspec.field(default_factory=list)
    _unsettled: list[int] = msgspec.field(default_factory=list)
    # (oldest version, group)
    _complete: dict[Split, list[tuple[int, int]]] = msgspec.field(default_factory=_by_split)

    def to_lease(self, split: Split, n: int) -> list[int]:
        """At most `n` waiting calls: resumable ones first, then new ones, each those of the oldest
        group first, and an agent's by number."""
        return [call for *_, call in self._waiting[split][:n]]

    def to_begin(self, split: Split, n: int) -> list[int]:
        """At most `n` episodes without an agent: those with an earlier one first, then new ones,
        each the oldest first."""
        return [rollout for *_, rollout in self._unbegun[split][:n]]

    def to_judge(self, after: int) -> list[int]:
        """Rollouts sealed and not judged whose `sealed` number is larger than `after`, the first
        sealed first."""
        return [
            rollout for _, rollout in self._unjudged[bisect_left(self._unjudged, (after + 1, 0)) :]
        ]

    def undecided(self) -> list[int]:
        """The groups that a rule may let grow, the oldest first."""
        return [*self._undecided]

    def unsettled(self) -> list[int]:
        """The sealed rollouts that may fork, by number."""
        return [*self._unsettled]

    def importing(self) -> list[int]:
        """The groups that foreign answers may join, the oldest first."""
        return [*self._importing]

    def ready(self, split: Split) -> list[int]:
        """The groups that may be taken whole: those with the oldest tokens first, then those
        admitted first."""
        return [group for _, group in self._complete[split]]

    def judged(self) -> list[int]:
        """The training rollouts with a verdict that no step has taken: those with the oldest tokens
        first."""
        return [rollout for _, rollout in self._judged]

    def enter(self, group: Group, call: Call) -> None:
        """List a live rollout of this group, or a call of one, under its status."""
        status = call.status
        self.statuses[status] += 1
        if isinstance(call, Rollout):
            self.open[group.split] += status is not RolloutStatus.TAKEN
        if status is RolloutStatus.WAITING:
            insort(*self._waiting_for(group, call))
        elif not isinstance(call, Rollout):
            pass
        elif status is RolloutStatus.SEALED:
            insort(self._unjudged, (call.sealed, call.id))
            self._queue(group, call, 1)
        elif status is RolloutStatus.JUDGED:
            self._queue(group, call, 1)
            if _on_offer(group, call):
                insort(self._judged, (call.oldest, call.id))
        if _unsettled(call):
            insort(self._unsettled, call.id)

    def leave(self, group: Group, call: Call) -> None:
        """Remove a rollout or a call from the list of its status. Its fields determine its position
        in a list, so these must not change while it is listed: `attempt` while it waits, `sealed`
        and its tokens once it is sealed, its verdict and `step` once it is judged."""
        status = call.status
        self.statuses[status] -= 1
        if isinstance(call, Rollout):
            self.open[group.split] -= status is not RolloutStatus.TAKEN
        if status is RolloutStatus.WAITING:
            _remove(*self._waiting_for(group, call))
        elif not isinstance(call, Rollout):
            pass
        elif status is RolloutStatus.SEALED:
            _remove(self._unjudged, (call.sealed, call.id))
            self._queue(group, call, -1)
        elif status is RolloutStatus.JUDGED:
            self._queue(group, call, -1)
            if _on_offer(group, call):
                _remove(self._judged, (call.oldest, call.id))
        if _unsettled(call):
            _remove(self._unsettled, call.id)

    def move(self, group: Group, call: Call, status: RolloutStatus) -> None:
        """Change the status of a rollout or a call; only this method may."""
        self.leave(group, call)
        call.status = status
        if status not in ENDED:
            self.enter(group, call)

    def promise(self, rollout: Rollout, step: int) -> None:
        """Reserve a judged rollout for `step`: it is not offered to another."""
        _remove(self._judged, (rollout.oldest, rollout.id))
        rollout.step = step

    def offer(self, group: Group) -> None:
        """List a group as undecided if it may grow, as importing if foreign answers may join it,
        or as ready if it is complete and no step has taken a member."""
        if group.undecided:
            insort(self._undecided, group.id)
        elif group.importing:
            insort(self._importing, group.id)
        elif group.complete and not group.begun:
            insort(self._complete[group.split], (group.oldest, group.id))

    def withdraw(self, group: Group) -> None:
        """Remove a ready group from the list; it must not have changed since it was listed."""
        _remove(self._complete[group.split], (group.oldest, group.id))

    def decide(self, group: Group) -> None:
        """Remove an undecided group from the list."""
        _remove(self._undecided, group.id)

    def settle(self, rollout: Rollout) -> None:
        """Remove a rollout that forks no more from the list, if it is there."""
        if rollout.status in _COMPLETE:
            _remove(self._unsettled, rollout.id)

    def close_imports(self, group: Group) -> None:
        """Remove an importing group from the list."""
        _remove(self._importing, group.id)

    def _waiting_for(self, group: Group, call: Call) -> tuple[list[tuple[bool, int, int]], Any]:
        """The list for waiting work of this kind, and the key there."""
        if not isinstance(call, Rollout):
            return self._waiting[group.split], (not call.attempt, call.id, call.id)
        first = group.members[0].id  # so members that were added later are as old as the group
        if (episode := call.episode) is not None:
            return self._unbegun[group.split], (not episode.attempt, first, call.id)
        return self._waiting[group.split], (not call.attempt, first, call.id)

    def _queue(self, group: Group, rollout: Rollout, sign: int) -> None:
        if group.split == "train":
            self.queue_items += sign
            self.queue_bytes += sign * (rollout.tokens * TOKEN_BYTES + len(rollout.routing))


_COMPLETE = frozenset({RolloutStatus.SEALED, RolloutStatus.JUDGED})
"""Statuses of rollouts whose response is complete, and that no step has taken."""


def _unsettled(call: Call) -> bool:
    return isinstance(call, Rollout) and call.forks and call.status in _COMPLETE


def _on_offer(group: Group, rollout: Rollout) -> bool:
    return rollout.step is None and group.split == "train"


def _remove(order: list[Any], key: Any) -> None:
    del order[bisect_left(order, key)]
