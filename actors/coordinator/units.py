"""Units of training: a whole group, or a single rollout (`train.unit`), in the order in which a
step may take them.

    offered    the units with the oldest tokens first, as far as the window allows
    in turn    in the order of admission, up to the first group that is not complete: where nothing
               may lag

    groups     complete ones, or the members of them that are chosen (`train.keep`)
    rollouts   judged ones of which `k_min` of the others are judged, too
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Protocol

from asyncrl.actors.coordinator.eligibility import Eligibility
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.window import Window
from asyncrl.config import Config
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.group import Group
from asyncrl.experience.rollout import Rollout


class Units(Protocol):
    """Units of one kind. A unit is the list of rollouts that are trained together."""

    per_step: int
    """Units of a step, where no tokens close it."""
    per_group: int
    """Units of a group."""

    @property
    def untaken(self) -> int:
        """Units that no step has taken, finished or not."""
        ...

    def offered(self, step: int) -> Iterator[list[Rollout]]:
        """Units that `step` may take, those with the oldest tokens first. What cannot be trained
        leaves on the way."""
        ...

    def in_turn(self, step: int) -> Iterator[list[Rollout]]:
        """Units that `step` may take, in the order of admission, up to the first group that is not
        complete."""
        ...

    def of(self, rollouts: list[Rollout]) -> list[list[Rollout]]:
        """Units of rollouts that were taken in this order. Example: rollouts of the groups 4, 4, 7
        are two groups, or three single rollouts."""
        ...

    def left_out(self, unit: list[Rollout]) -> list[Rollout]:
        """Rollouts with a reward that are left out where this unit is trained."""
        ...


class GroupUnits:
    """Whole groups: all that is trained of them."""

    per_group = 1

    def __init__(self, store: EventStore, config: Config, eligibility: Eligibility) -> None:
        self._store, self._config, self._eligibility = store, config, eligibility
        self.per_step = config.train.batch_groups

    @property
    def untaken(self) -> int:
        return self._store.experience.groups_untaken

    def offered(self, step: int) -> Iterator[list[Rollout]]:
        waiting = [(group, group.scored) for group in self._store.experience.ready()]
        yield from Window(self._store, self._config).admit(
            waiting, lambda group, _: self._eligibility.keep_group(group, step)
        )

    def in_turn(self, step: int) -> Iterator[list[Rollout]]:
        for group in _complete_in_turn(self._store):
            if not group.begun and (unit := self._eligibility.keep_group(group, step)):
                yield unit

    def of(self, rollouts: list[Rollout]) -> list[list[Rollout]]:
        return [list(members) for _, members in groupby(rollouts, lambda rollout: rollout.group)]

    def left_out(self, unit: list[Rollout]) -> list[Rollout]:
        group, kept = self._store.experience.groups[unit[0].group], {member.id for member in unit}
        return [member for member in group.scored if member.id not in kept]


class RolloutUnits:
    """Single rollouts: each as soon as `k_min` of its siblings are judged."""

    def __init__(self, store: EventStore, config: Config, eligibility: Eligibility) -> None:
        self._store, self._config, self._eligibility = store, config, eligibility
        self.per_group = config.rollout.group_size
        self.per_step = config.train.batch_groups * self.per_group

    @property
    def untaken(self) -> int:
        return self._store.experience.rollouts_untaken

    def offered(self, step: int) -> Iterator[list[Rollout]]:
        self._eligibility.drop_unjudged()
        waiting = [
            (self._store.experience.groups[rollout.group], [rollout])
            for rollout in self._store.experience.judged()
        ]
        yield from Window(self._store, self._config).admit(
            waiting,
            lambda group, unit: (
                unit if self._eligibility.keep_rollout(group, unit[0], step) else []
            ),
        )

    def in_turn(self, step: int) -> Iterator[list[Rollout]]:
        self._eligibility.drop_unjudged()
        for group in _complete_in_turn(self._store):
            for rollout in group.members:
                if (
                    rollout.step is None
                    and rollout.status is RolloutStatus.JUDGED
                    and self._eligibility.keep_rollout(group, rollout, step)
                ):
                    yield [rollout]

    def of(self, rollouts: list[Rollout]) -> list[list[Rollout]]:
        return [[rollout] for rollout in rollouts]

    def left_out(self, unit: list[Rollout]) -> list[Rollout]:
        return []


def _complete_in_turn(store: EventStore) -> Iterator[Group]:
    """Training groups in the order of admission, up to the first that is not complete."""
    for group in list(store.experience.groups.values()):
        if group.split == "train":
            if not group.complete:
                return
            yield group
