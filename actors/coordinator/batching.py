"""Batching: the units that the open step takes, until it is closed.

    whole step     where advantages compare all groups of a step: all of it at once
    in turn        where nothing may lag: in the order of admission, a piece of the step at a time
    as finished    else: the units with the oldest tokens first, a micro-batch at a time

A step is closed by `batch_groups` groups' worth of units, or by `step_tokens` response tokens; and
by less where nothing else can come.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from asyncrl.actors.coordinator.admission import Admission
from asyncrl.actors.coordinator.eligibility import Eligibility
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.units import GroupUnits, RolloutUnits, Units
from asyncrl.config import Config
from asyncrl.config.flow import admission_policy, max_lag
from asyncrl.config.losses import advantage_of
from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.experience.rollout import Rollout
from asyncrl.explain.response_sums import ResponseSums

PIECES = 4
"""The fewest micro-batches of a step where nothing may lag, so that finished parts of a step are
trained while the rest is generated."""


class Batching:
    """Batches of one step after another. The open step has taken `units` units of `tokens` response
    tokens."""

    def __init__(self, store: EventStore, config: Config, admission: Admission) -> None:
        self._store, self._config, self._admission = store, config, admission
        self._eligibility = Eligibility(store, config, partial(admission.label, "train"))
        kind = GroupUnits if config.train.unit == "group" else RolloutUnits
        self._units: Units = kind(store, config, self._eligibility)
        self._policy = admission_policy(config)
        self._max_units = self._policy.max_live * self._units.per_group
        self.units = self.tokens = 0

    @property
    def untaken(self) -> int:
        """Units that no step has taken yet, finished or not."""
        return self._units.untaken

    @property
    def filtered(self) -> int:
        """Groups' worth of units without a signal since the last unit that was taken."""
        return self._eligibility.filtered // self._units.per_group

    def responses(self) -> ResponseSums:
        """Return and reset the sums over the units that were checked since the last call, trained
        or not."""
        responses, self._eligibility.responses = self._eligibility.responses, ResponseSums()
        return responses

    def rewards_by_task(self) -> dict[str, float]:
        """Return the mean reward of each of several tasks since the last call, as `reward/label`,
        and the share of fully right answers, as `exact/label`."""
        sums, self._eligibility.by_task = self._eligibility.by_task, {}
        return {
            f"{name}/{label}": of_task.metrics()[name]
            for label, of_task in sums.items()
            for name in ("reward", "exact")
            if of_task.responses
        }

    @property
    def full(self) -> bool:
        """True if the step is full, or has all units and no more may be live."""
        return self._enough(0, 0) or self._alone([])

    @property
    def may_start(self) -> int:
        """Number of groups that admission lets start now."""
        return self._policy.may_start(self._store.experience)

    def missing(self, steps: int) -> int:
        """Number of groups that this many steps, including the open one, still need beside the
        existing ones, if all pass the filter. Where tokens close a step this is unknown: then it is
        the limit of live groups."""
        if self._config.train.step_tokens and steps:
            return self._policy.max_live
        units = steps * self._units.per_step - self.units - self._units.untaken
        return math.ceil(units / self._units.per_group)

    def next(
        self,
        step: int,
        size: Callable[[Rollout], int],
        *,
        whole: bool = False,
        busy: bool = False,
    ) -> list[list[Rollout]]:
        """Choose units that fit one micro-batch, in which a rollout takes `size` tokens. A unit
        that is too large for one comes alone. Empty if there is none yet, or the step is full. With
        `whole`, a step that has taken nothing is chosen at once. While the trainer is `busy`, units
        that do not fill a micro-batch wait for others, because small passes take longer per token.
        """
        if self.full:
            return []
        if advantage_of(self._config.train).whole_step or (whole and not self.units):
            return self._whole_step(step)
        if max_lag(self._config) == 0:
            return self._in_turn(step, size)
        room, tokens, chosen = micro_tokens(self._config), 0, list[list[Rollout]]()
        for unit in self._units.offered(step):
            room -= sum(map(size, unit))
            if chosen and room < 0:
                break
            chosen.append(unit)
            tokens += _tokens(unit)
            if self._enough(len(chosen), tokens):
                break
        fills = room < 0 or self._enough(len(chosen), tokens) or self._last(chosen)
        return [] if busy and not fills else chosen

    def retake(self, rollouts: list[Rollout]) -> list[list[Rollout]]:
        """Return the units of rollouts that the open step had before a crash, in this order. Empty
        if it is full."""
        return [] if self.full else self._units.of(rollouts)

    def take(self, units: list[list[Rollout]]) -> list[Rollout]:
        """Add these to the open step. Returns the rollouts that leave with them because they were
        not chosen."""
        self.units += len(units)
        self.tokens += sum(map(_tokens, units))
        left_out = [rollout for unit in units for rollout in self._units.left_out(unit)]
        self._eligibility.take([rollout for unit in units for rollout in unit], left_out)
        return left_out

    def close(self) -> None:
        """Open another step."""
        self.units = self.tokens = 0

    def _in_turn(self, step: int, size: Callable[[Rollout], int]) -> list[list[Rollout]]:
        """Choose units in the order of admission: a whole piece of the step, or nothing.

        Sums of floats depend on the order in which they are added. So the weights are a function of
        the seed, whichever group completes first and whatever is killed. Waiting for an older group
        costs nothing here: the step needs them all.
        """
        room, tokens, chosen = micro_tokens(self._config), 0, list[list[Rollout]]()
        piece = math.ceil(self._units.per_step / PIECES)
        for unit in self._units.in_turn(step):
            room -= sum(map(size, unit))
            if chosen and room < 0:
                return chosen
            chosen.append(unit)
            tokens += _tokens(unit)
            if len(chosen) == piece or self._enough(len(chosen), tokens):
                return chosen
        return chosen if self._last(chosen) else []

    def _whole_step(self, step: int) -> list[list[Rollout]]:
        """Choose all of the step at once, or nothing."""
        tokens, chosen = 0, list[list[Rollout]]()
        in_turn = max_lag(self._config) == 0
        for unit in self._units.in_turn(step) if in_turn else self._units.offered(step):
            chosen.append(unit)
            tokens += _tokens(unit)
            if self._enough(len(chosen), tokens):
                return chosen
        return chosen if self._last(chosen) else []

    def _enough(self, units: int, tokens: int) -> bool:
        """True if the step is full with this many more units and tokens."""
        units += self.units
        if budget := self._config.train.step_tokens:
            return self.tokens + tokens >= budget or units >= self._max_units
        return units >= self._units.per_step

    def _last(self, chosen: list[list[Rollout]]) -> bool:
        """True if nothing else can come for the step: these are all units, finished or not, and no
        group can start."""
        return (self._admission.exhausted and len(chosen) == self._units.untaken) or self._alone(
            chosen
        )

    def _alone(self, chosen: list[list[Rollout]]) -> bool:
        """True if the step has, with these, all units, and no further group fits because siblings
        were dropped.

        Example: 2 groups of 4 rollouts may be live, so a step has at most 8. With 5 of them, and 3
        left out, no group of 4 fits beside the 5: the step is closed with these.
        """
        units = self.units + len(chosen)
        return (
            units > self._max_units - self._units.per_group and len(chosen) == self._units.untaken
        )


def _tokens(unit: list[Rollout]) -> int:
    """The run's own tokens: foreign ones close no step."""
    return sum(rollout.tokens for rollout in unit if rollout.own)
