"""What the open step takes next. Invariant: a token over `max_lag` enters a loss only where
`on_stale` says `train`, and finished work that cannot be trained leaves under its reason.

    groups     complete ones, those with the oldest tokens first
    rollouts   judged ones of which k_min of the others are judged, too, those with the oldest tokens first
    in turn    where nothing may lag: groups in the order of admission

With a window nothing is taken that was admitted `window` groups or more after the oldest that is
not done: this waits, but bounds lag (docs/lag.md). Otherwise nothing finished waits for anything
unfinished.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Protocol

from actors.coordinator.event_store import EventStore
from asyncrl.config import Config
from asyncrl.config.flow import admission_policy, max_lag
from asyncrl.config.losses import advantage_of
from asyncrl.experience.events import AnyEvent, Discarded, Dropped
from asyncrl.experience.rollout import Group, Rollout, RolloutStatus
from asyncrl.ipc.messages import Scored
from staleness.baseline import Prior, shrunk
from staleness.lag import rollout_lag

PIECES = 4
"""Micro-batches of a step where nothing may lag, at least: what is done of a step is trained while
the rest is generated."""


class Unit(Protocol):
    """What is trained together."""

    per_step: int
    """Units of a step."""
    per_group: int
    """Units that a group gives."""

    @property
    def untaken(self) -> int:
        """Units that no step has taken, finished or not."""
        ...

    def offered(self, step: int) -> Iterator[list[Rollout]]:
        """The units that step may take, the oldest first; what cannot be trained leaves on the
        way."""
        ...

    def in_turn(self, step: int) -> Iterator[list[Rollout]]:
        """The same in the order of admission, up to the first group that is not complete."""
        ...

    def of(self, rollouts: list[Rollout]) -> list[list[Rollout]]:
        """The units that were taken in this order."""
        ...


class Eligibility:
    """Whether finished work can be trained. `filtered` counts what had no signal since the last
    that had."""

    def __init__(self, store: EventStore, config: Config) -> None:
        self.store = store
        self.config = config
        self.filtered = 0
        self.rewards: list[float] = []  # of what was looked at since the last step, filtered or not

    def complete_in_turn(self) -> Iterator[Group]:
        """Training groups in the order of admission, up to the first that is not complete."""
        for group in list(self.store.experience.groups.values()):
            if group.split == "train":
                if not group.complete:
                    return
                yield group

    def leaves(self, event: AnyEvent, rewards: list[float], *, filtered: bool = False) -> None:
        """What had these rewards cannot be trained."""
        self.filtered += filtered
        self.rewards += rewards
        self.store.record(event)

    def stale(self, rollouts: list[Rollout], step: int) -> bool:
        """Whether they are too old to be trained: by any token, or where those are masked, by
        all."""
        most, on_stale = max_lag(self.config), self.config.staleness.on_stale
        if on_stale == "mask":
            return all(
                step - max((span.version for span in rollout.spans), default=step) > most
                for rollout in rollouts
            )
        return any(rollout_lag(rollout.spans, step) > most for rollout in rollouts)


class GroupUnits:
    """Whole groups."""

    per_group = 1

    def __init__(self, judge: Eligibility) -> None:
        self._judge = judge
        self._store, self._config = judge.store, judge.config
        self.per_step = judge.config.train.batch_groups

    @property
    def untaken(self) -> int:
        return self._store.experience.groups_untaken

    def offered(self, step: int) -> Iterator[list[Rollout]]:
        waiting = [(group, group.scored) for group in self._store.experience.ready()]
        yield from Window(self._store, self._config).of(
            waiting, lambda group, _: not self._leaves(group, step)
        )

    def in_turn(self, step: int) -> Iterator[list[Rollout]]:
        for group in self._judge.complete_in_turn():
            if not group.begun and not self._leaves(group, step):
                yield group.scored

    def of(self, rollouts: list[Rollout]) -> list[list[Rollout]]:
        return [list(members) for _, members in groupby(rollouts, lambda rollout: rollout.group)]

    def _leaves(self, group: Group, step: int) -> bool:
        rollout, restart = self._config.rollout, self._config.staleness.on_stale == "restart"
        if len(group.rewards) < rollout.k_min:
            self._judge.leaves(Dropped(group.id, "k_min"), group.rewards, filtered=True)
        elif rollout.filter == "zero_variance" and min(group.rewards) == max(group.rewards):
            self._judge.leaves(Dropped(group.id, "zero_variance"), group.rewards, filtered=True)
        elif self._judge.stale(group.scored, step):
            self._judge.leaves(Dropped(group.id, "stale", restart=restart), group.rewards)
        else:
            return False
        return True


class RolloutUnits:
    """Single rollouts: each as soon as `k_min` of its siblings are judged."""

    def __init__(self, judge: Eligibility) -> None:
        self._judge = judge
        self._store, self._config = judge.store, judge.config
        self.per_group = judge.config.rollout.group_size
        self.per_step = judge.config.train.batch_groups * self.per_group

    @property
    def untaken(self) -> int:
        return self._store.experience.rollouts_untaken

    def offered(self, step: int) -> Iterator[list[Rollout]]:
        self._drop_unjudged()
        waiting = [
            (self._store.experience.groups[rollout.group], [rollout])
            for rollout in self._store.experience.judged()
        ]
        yield from Window(self._store, self._config).of(
            waiting, lambda group, unit: self._can(group, unit[0], step)
        )

    def in_turn(self, step: int) -> Iterator[list[Rollout]]:
        self._drop_unjudged()
        for group in self._judge.complete_in_turn():
            for rollout in group.members:
                if (
                    rollout.step is None
                    and rollout.status is RolloutStatus.JUDGED
                    and self._can(group, rollout, step)
                ):
                    yield [rollout]

    def of(self, rollouts: list[Rollout]) -> list[list[Rollout]]:
        return [[rollout] for rollout in rollouts]

    def _drop_unjudged(self) -> None:
        """Groups that were buried whole."""
        for group in self._store.experience.ready():
            if not any(member.status is RolloutStatus.JUDGED for member in group.members):
                self._judge.leaves(Dropped(group.id, "k_min"), [], filtered=True)

    def _can(self, group: Group, rollout: Rollout, step: int) -> bool:
        if not isinstance(rollout.verdict, Scored):
            self._judge.leaves(Discarded(rollout.id, "no_verdict"), [])
            return False
        rewards = [rollout.verdict.reward]
        if len(group.others(rollout)) < self._config.rollout.k_min:
            if group.complete:
                self._judge.leaves(Discarded(rollout.id, "k_min"), rewards, filtered=True)
        elif (
            self._config.rollout.filter == "zero_variance"
            and baseline(group, rollout, self._config) == rewards[0]
        ):
            self._judge.leaves(Discarded(rollout.id, "zero_variance"), rewards, filtered=True)
        elif self._judge.stale([rollout], step):
            self._judge.leaves(Discarded(rollout.id, "stale"), rewards)
        else:
            return True
        return False


class Window:
    """What may be taken at all, for the oldest group of which anything is neither taken nor
    chosen."""

    def __init__(self, store: EventStore, config: Config) -> None:
        self._experience, self._groups = store.experience, config.staleness.window
        self._chosen: set[int] = set()

    def of(
        self,
        waiting: list[tuple[Group, list[Rollout]]],
        can: Callable[[Group, list[Rollout]], bool],
    ) -> Iterator[list[Rollout]]:
        """The units that wait, in this order, and `can` be trained; what the window keeps back
        comes when what keeps it is chosen."""
        while waiting:
            kept, end = [], self._end()
            for group, unit in waiting:
                if group.ordinal >= end:
                    kept.append((group, unit))
                    continue
                if can(group, unit):
                    yield unit
                    leaving = group.unscored if group.complete else ()  # with what is taken of it
                    self._chosen.update(rollout.id for rollout in (*unit, *leaving))
                end = self._end()
            if len(kept) == len(waiting):
                return
            waiting = kept

    def _end(self) -> float:
        """The first place in the order of admission that is out of it."""
        oldest = self._experience.oldest(self._chosen) if self._groups else None
        return math.inf if oldest is None else oldest.ordinal + self._groups


class Batching:
    """Fills one step after another. `units` of so many `tokens` are what the open step has
    taken."""

    def __init__(self, store: EventStore, config: Config, exhausted: Callable[[], bool]) -> None:
        """`exhausted` says whether no prompt is left."""
        self._store, self._config, self._exhausted = store, config, exhausted
        self.judge = Eligibility(store, config)
        self.unit: Unit = (
            GroupUnits(self.judge) if config.train.unit == "group" else RolloutUnits(self.judge)
        )
        self._policy = admission_policy(config)
        self._most = self._policy.max_live * self.unit.per_group
        self.units = self.tokens = 0

    @property
    def full(self) -> bool:
        """Whether the step has what closes it. It is not waited for with more than may be live."""
        return self._enough(0, 0) or self._alone([])

    @property
    def may_start(self) -> int:
        """Number of groups that admission lets start now."""
        return self._policy.may_start(self._store.experience)

    def missing(self, steps: int) -> int:
        """Number of groups that so many steps, the open one among them, still need beside those
        there are, if all pass the filter. Where tokens close a step nobody knows: then it is as
        many as may be live."""
        if self._config.train.step_tokens and steps:
            return self._policy.max_live
        units = steps * self.unit.per_step - self.units - self.unit.untaken
        return math.ceil(units / self.unit.per_group)

    def next(self, step: int, size: Callable[[Rollout], int]) -> list[list[Rollout]]:
        """Units that fit one micro-batch, in which a rollout takes `size` tokens; what does not fit
        one comes alone."""
        if self.full:
            return []
        if advantage_of(self._config.train).whole_step:
            return self._all(step)
        if max_lag(self._config) == 0:
            return self._in_turn(step, size)
        room, tokens, chosen = self._config.train.micro_tokens, 0, list[list[Rollout]]()
        for unit in self.unit.offered(step):
            room -= sum(map(size, unit))
            if chosen and room < 0:
                break
            chosen.append(unit)
            tokens += _tokens(unit)
            if self._enough(len(chosen), tokens):
                break
        return chosen

    def take(self, units: list[list[Rollout]]) -> None:
        """The open step has these."""
        self.units += len(units)
        self.tokens += sum(map(_tokens, units))
        self.judge.filtered = 0
        verdicts = [rollout.verdict for unit in units for rollout in unit]
        self.judge.rewards += [
            verdict.reward for verdict in verdicts if isinstance(verdict, Scored)
        ]

    def close(self) -> None:
        """Another step is open."""
        self.units = self.tokens = 0

    def _in_turn(self, step: int, size: Callable[[Rollout], int]) -> list[list[Rollout]]:
        """Groups in the order of admission, a whole piece of the step or nothing: sums of floats
        depend on what is added when, so this makes the weights a function of the seed, whoever is
        complete first and whatever is killed. Waiting for an older group costs nothing here: the
        step needs them all."""
        room, tokens, chosen = self._config.train.micro_tokens, 0, list[list[Rollout]]()
        piece = math.ceil(self.unit.per_step / PIECES)
        for unit in self.unit.in_turn(step):
            room -= sum(map(size, unit))
            if chosen and room < 0:
                return chosen
            chosen.append(unit)
            tokens += _tokens(unit)
            if len(chosen) == piece or self._enough(len(chosen), tokens):
                return chosen
        return chosen if self._last(chosen) else []

    def _all(self, step: int) -> list[list[Rollout]]:
        """All of the step at once, or nothing yet."""
        tokens, chosen = 0, list[list[Rollout]]()
        for unit in (
            self.unit.in_turn(step) if max_lag(self._config) == 0 else self.unit.offered(step)
        ):
            chosen.append(unit)
            tokens += _tokens(unit)
            if self._enough(len(chosen), tokens):
                return chosen
        return chosen if self._last(chosen) else []

    def _enough(self, units: int, tokens: int) -> bool:
        """Whether the step has what it needs, with so many units more, of so many tokens."""
        units += self.units
        if budget := self._config.train.step_tokens:
            return self.tokens + tokens >= budget or units >= self._most
        return units >= self.unit.per_step

    def _last(self, chosen: list[list[Rollout]]) -> bool:
        """Whether nothing else can come for the step: these are all there is, finished or not, and
        no group can start."""
        return (self._exhausted() and len(chosen) == self.unit.untaken) or self._alone(chosen)

    def _alone(self, chosen: list[list[Rollout]]) -> bool:
        """Whether the step has, with these, all there is, and what it has leaves no room for
        another group: siblings were left out."""
        units = self.units + len(chosen)
        return units > self._most - self.unit.per_group and len(chosen) == self.unit.untaken


def _tokens(unit: list[Rollout]) -> int:
    return sum(rollout.tokens for rollout in unit)


def baseline(group: Group, rollout: Rollout, config: Config) -> float:
    """What a rollout that is trained alone is measured by: nothing of it depends on the rollout
    itself (docs/lag.md)."""
    return shrunk(
        group.others(rollout), config.rollout.k_min, Prior(*group.prior), config.train.prior_visits
    )
