"""Rules of admission, selection and baselines, worked out a second time from the configuration.
Invariant: they share no code with the product's.

A *unit* is trained together: a group, or each of its rollouts alone (`train.unit`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby

import msgspec

from asyncrl.config import Config
from asyncrl.experience import events as e
from asyncrl.messages import NoVerdict, Scored, Verdict
from asyncrl.simulation import policy
from asyncrl.simulation.checker.reference_facts import Filling
from asyncrl.simulation.checker.reference_rollouts import (
    ReferenceAgentCall,
    ReferenceCall,
    ReferenceRollout,
)
from asyncrl.simulation.checker.reference_state import ReferenceState

SAMPLED = 2**62
"""The key of the first sampled answer to a held-out prompt."""


class ReferenceRules:
    """The rules for a run as it stands: its `reference` state, the weights of each version
    (`lineage`), the versions published in this life (`here`), and the `version` from which training
    started in this life."""

    config: Config
    rewards: policy.Rewards
    reference: ReferenceState
    here: set[int]
    version: int
    closed: int
    prescribed: list[tuple[int, list[int]]]
    lineage: dict[int, int]

    @property
    def max_lag(self) -> int:
        staleness = self.config.staleness
        return 2**31 if staleness.on_stale == "train" else staleness.max_lag

    @property
    def masks_cut(self) -> bool:
        """True if responses that were cut at their budget stay out of the loss."""
        return self.config.rollout.truncated == "mask"

    @property
    def band(self) -> int:
        """Tokens over which the reward of a training response sinks; 0 where it does not."""
        rollout = self.config.rollout
        if rollout.truncated != "penalize":
            return 0
        return rollout.overlong_band or max(1, rollout.max_new_tokens // 5)

    def booked(self, seen: ReferenceRollout, given: Scored) -> Scored:
        """The verdict that is booked where a verifier has given this one. Of an episode it has seen
        the last turn, whose tokens are its last."""
        if seen.episode is not None:
            before = len(seen.versions) - len(seen.episode.turns[-1].versions)
            errors = [(start + before, end + before) for start, end in given.errors]
            return msgspec.structs.replace(given, errors=errors)
        before = len(seen.shared) // 4
        errors = [(max(0, start - before), end - before) for start, end in given.errors]
        errors = [(start, end) for start, end in errors if end > 0]
        given = msgspec.structs.replace(given, errors=errors)
        if not self.band or seen.group.event.split != "train":
            return given
        lost = policy.penalty(len(seen.response) // 4, seen.group.event.max_new_tokens, self.band)
        parts = [*given.parts, lost] if given.parts else []
        return Scored(given.reward + lost, parts, given.reward, given.errors)

    def verdict(self, seen: ReferenceRollout) -> Verdict:
        """The verdict that a rollout deserves: that of its agent, if it gave one; none where it has
        asked for nothing; else that of a verifier, on its response or its last turn."""
        prompt_index, episode = seen.group.event.prompt_index, seen.episode
        if episode is None:
            return self.booked(seen, self.rewards.scored(prompt_index, seen.response))
        if not episode.turns:
            return NoVerdict("no turn: the agent asked the model for nothing")
        if None in episode.rewards:
            return Scored(episode.rewards[None])
        last = bytes(episode.turns[-1].ids)
        return self.booked(seen, self.rewards.scored(prompt_index, last))

    @property
    def per_group(self) -> int:
        """Units that a group is: what is trained together is a group, or each of its rollouts."""
        return 1 if self.config.train.unit == "group" else self.config.rollout.group_size

    @property
    def live(self) -> int:
        """Units that are not over."""
        return (
            self.reference.groups_live
            if self.config.train.unit == "group"
            else self.reference.rollouts_live
        )

    @property
    def max_live(self) -> int:
        """Groups that may be live where none is filtered."""
        groups = self.config.train.batch_groups
        return self.config.staleness.depth * groups + math.ceil(
            self.config.rollout.overprovision * groups
        )

    @property
    def max_live_filtered(self) -> int:
        """Groups that may be live. Where a filter leaves some out, others are started for them, as
        far as lag and a factor of 4 allow. Relative to the step equal rewards are a signal too, and
        nothing is filtered."""
        train, staleness = self.config.train, self.config.staleness
        unfiltered = (
            self.config.rollout.filter == "none" or self.config.train.advantage == "reinforce_pp"
        )
        if unfiltered or train.unit == "rollout":
            return self.max_live
        return min(
            4 * self.max_live,
            max(
                self.max_live,
                math.floor((self.max_lag + 1) * self.smallest) - max(0, staleness.window - 1),
            ),
        )

    @property
    def worst_lag(self) -> int:
        """Largest lag that the window leaves possible: of a group that has all other live ones
        before it or beside it, and is overtaken by all that the window lets overtake it. Where a
        step needs all that may be live there is nobody to wait for."""
        live, window = self.max_live_filtered, self.config.staleness.window
        return 0 if live <= self.smallest else math.ceil((live + window - 1) / self.smallest) - 1

    @property
    def smallest(self) -> Fraction:
        """Groups that a full step has at least. One that tokens close is full with the longest
        responses, and with as many groups as may be live where none is filtered."""
        train, rollout = self.config.train, self.config.rollout
        if not train.step_tokens:
            return Fraction(train.batch_groups)
        longest = -(-train.step_tokens // rollout.max_new_tokens)
        if train.unit == "rollout":
            return min(Fraction(self.max_live), Fraction(longest, rollout.group_size))
        size = rollout.group_size if rollout.sizing == "fixed" else rollout.group_size_max
        of_tokens = -(-train.step_tokens // (size * rollout.max_new_tokens))
        return Fraction(min(self.max_live, of_tokens))

    def draws(self, seen: ReferenceCall) -> int:
        """Identity of the draws of an agent's call, or of a rollout of one turn: an evaluation is
        greedy, or each of its samples has draws that follow from prompt and sample; each training
        rollout has draws of its own, which follow from the place of its prompt and its place in the
        group."""
        if isinstance(seen, ReferenceAgentCall):
            return seen.draws
        assert isinstance(seen, ReferenceRollout)
        event, rollout = seen.group.event, self.config.rollout
        if event.split == "evaluation" and event.sampled:
            return self.sample_draws(event.prompt, event.prompt_index, seen.member)
        if event.split == "evaluation":
            return policy.draws(event.prompt, 0, 0.0)
        key = self.first_key(event, seen.group.place) + seen.group.slots[seen.id]
        return policy.draws(seen.context, key, rollout.temperature)

    def first_key(self, event: e.Admitted, place: int) -> int:
        """The key of the first rollout of a group whose prompt has this place."""
        rollout, samples = self.config.rollout, self.config.evaluation.samples
        if event.sampled:
            return SAMPLED + samples * event.prompt_index
        if event.split == "evaluation":
            return place
        most = rollout.group_size if rollout.sizing == "fixed" else rollout.group_size_max
        return most * place

    def temperature(self, event: e.Admitted) -> float:
        """The temperature at which a group is sampled; 0: greedily."""
        if event.split == "train":
            return self.config.rollout.temperature
        return self.config.evaluation.temperature if event.sampled else 0.0

    def sample_draws(self, prompt: bytes, prompt_index: int, sample: int) -> int:
        """Identity of the draws of a held-out prompt's `sample`-th sampled answer, from 0."""
        evaluation = self.config.evaluation
        key = SAMPLED + evaluation.samples * prompt_index + sample
        return policy.draws(prompt, key, evaluation.temperature)

    def units(self, rollouts: Sequence[ReferenceRollout]) -> list[list[ReferenceRollout]]:
        """Divide rollouts, in the order in which they were taken, into units."""
        if self.config.train.unit == "rollout":
            return [[seen] for seen in rollouts]
        return [
            list(members) for _, members in groupby(rollouts, lambda seen: seen.group.event.group)
        ]

    def full(self, filling: Filling, more: Sequence[ReferenceRollout] = ()) -> bool:
        """True if a step that has taken all this, and `more`, has as much as it needs."""
        train, count = self.config.train, self._count(filling, more)
        if train.step_tokens:
            tokens = filling.tokens + sum(len(seen.versions) for seen in more if seen.own)
            return tokens >= train.step_tokens or count >= self.per_group * self.max_live
        return count >= self.per_group * train.batch_groups

    def closes(self, filling: Filling) -> bool:
        """True if a step is closed with what it has: it is full, or it has all rollouts there are
        and no other group may be live."""
        alone = not self.reference.rollouts_untaken and self._count(filling) > self.per_group * (
            self.max_live - 1
        )
        return self.full(filling) or alone

    def _count(self, filling: Filling, more: Sequence[ReferenceRollout] = ()) -> int:
        if self.config.train.unit == "rollout":
            return filling.rollouts + len(more)
        return len(filling.groups | {seen.group.event.group for seen in more})

    @property
    def open_step(self) -> int:
        """The step that takes next. One that was closed before a crash has what it had then."""
        begun = max(self.reference.steps, default=-1)
        return max(
            self.version,
            max(self.lineage),
            0 if self.prescribed else self.closed,
            begun + (begun >= 0 and self.closes(self.reference.steps[begun])),
        )

    def rests_for(self) -> int | None:
        """The version that has to be published before anything is generated again; None where
        generation goes on."""
        batch = self.config.rollout.mode == "batch" and max(self.here, default=-1) < self.open_step
        return self.open_step if batch else None

    def stale(self, unit: Sequence[ReferenceRollout], step: int) -> bool:
        """True if this step cannot train a unit: because all its tokens are stale if stale tokens
        are masked, else because one of them is."""
        versions = [version for seen in unit if seen.own for version in seen.versions]
        if self.config.staleness.on_stale == "mask":
            return bool(versions) and all(step - version > self.max_lag for version in versions)
        return any(step - version > self.max_lag for version in versions)

    def baseline(self, seen: ReferenceRollout) -> float:
        """The baseline of a rollout that is trained alone."""
        return seen.group.baseline(
            seen.id, self.config.rollout.k_min, self.config.train.prior_visits
        )
