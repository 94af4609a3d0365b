"""The sequences that the trainer is given: those of rollouts, and those that are trained again."""

from __future__ import annotations

import math
from typing import NamedTuple

from actors.coordinator.eligibility import baseline
from asyncrl.config import Config
from asyncrl.experience.replay_buffer import ReplayGroup
from asyncrl.experience.rollout import Group, Rollout, RolloutStatus
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.ipc.messages import Sample, Scored


class SequenceToTrain(NamedTuple):
    """A sequence on its way to the trainer, and its head in the micro-batch."""

    sample: Sample
    sequence: TrainingSequence

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and the response together."""
        return self.sample.prompt_tokens + self.sample.response_tokens


def of_rollout(group: Group, rollout: Rollout, config: Config) -> SequenceToTrain:
    """The sequence of a member of `group`. Its reward is NaN before it has one. It has a baseline
    if a step has taken it alone (`train.unit = rollout`)."""
    alone = config.train.unit == "rollout" and rollout.status is RolloutStatus.TAKEN
    scored = isinstance(rollout.verdict, Scored)
    sequence = group.sequence(rollout)
    sample = sequence.sample(
        rollout.id,
        group.id,
        rollout.verdict.reward if isinstance(rollout.verdict, Scored) else math.nan,
        baseline=baseline(group, rollout, config) if alone else None,
        member=group.scored.index(rollout) if scored else None,
    )
    return SequenceToTrain(sample, sequence)


def of_replayed(kept: ReplayGroup, place: int) -> SequenceToTrain:
    """The sequence of member `place` of a group that was trained before."""
    member = kept.members[place]
    sequence = kept.sequence(member)
    sample = sequence.sample(member.rollout, kept.group, member.reward, member=place)
    return SequenceToTrain(sample, sequence)
