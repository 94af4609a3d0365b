"""The sequences that the trainer is given: those of rollouts, and those that are trained again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

import msgspec

from asyncrl.actors.coordinator.eligibility import baseline
from asyncrl.algorithms.advantages.by_root import stretches
from asyncrl.config import Config
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.episode import failed_tokens, path_counts, turn_tokens
from asyncrl.experience.group import Group
from asyncrl.experience.replay_buffer import ReplayGroup, ReplayMember
from asyncrl.experience.rollout import Rollout
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.messages import Sample, Scored, TokenCount


class SequenceToTrain(NamedTuple):
    """A sequence on its way to the trainer, and its head in the micro-batch."""

    sample: Sample
    sequence: TrainingSequence

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and the response together.

        >>> SequenceToTrain(Sample(0, 0, 3, 4, 1.0, []), None).tokens
        7
        """
        return self.sample.prompt_tokens + self.sample.response_tokens


def by_rollout(counts: Iterable[TokenCount]) -> list[TokenCount]:
    """One count for each rollout: that of all of its sequences, in the order in which each came
    first, with their places as they are (`placed`).

    >>> (count,) = by_rollout([TokenCount(7, 3, {"stale": 1}), TokenCount(7, 2, {"stale": 2})])
    >>> count.rollout, count.trained, count.discarded
    (7, 5, {'stale': 3})
    """
    totals: dict[int, TokenCount] = {}
    for count in counts:
        known = totals.get(count.rollout, TokenCount(count.rollout, 0, {}))
        discarded = Counter(known.discarded) + Counter(count.discarded)
        places = {
            reason: sorted([*known.places.get(reason, ()), *count.places.get(reason, ())])
            for reason in [*known.places, *count.places]
        }
        totals[count.rollout] = TokenCount(
            count.rollout, known.trained + count.trained, dict(discarded), places=places
        )
    return list(totals.values())


def placed(count: TokenCount, rollout: Rollout) -> TokenCount:
    """The count, whose places are among the tokens of the rollout. Those of a strand are counted
    from its own first token: each of its turns begins elsewhere in the rollout.

    Example: where a strand has turn 1 alone, behind the two tokens of turn 0, its token 1 is the
    rollout's token 3.
    """
    if not count.places or not rollout.strands:
        return count
    starts = [0, *accumulate(turn.tokens for turn in rollout.turns)]
    parts, at = list[tuple[int, int, int]](), 0
    for turn, tokens in turn_tokens(rollout.turns, rollout.strands[count.strand]):
        parts.append((at, at + tokens, starts[turn] - at))
        at += tokens
    places = {
        reason: [
            (max(start, first) + moved, min(end, last) + moved)
            for start, end in stretches
            for first, last, moved in parts
            if start < last and first < end
        ]
        for reason, stretches in count.places.items()
    }
    return msgspec.structs.replace(count, places=places)


def of_rollout(group: Group, rollout: Rollout, config: Config) -> list[SequenceToTrain]:
    """The sequences of a member of `group`: one, or of an episode one for each strand. Its reward
    is NaN before it has one. It has a baseline if a step has taken it alone
    (`train.unit = rollout`)."""
    alone = config.train.unit == "rollout" and rollout.status is RolloutStatus.TAKEN
    reward = rollout.verdict.reward if isinstance(rollout.verdict, Scored) else None
    counts = _path_counts(rollout, config)
    return [
        SequenceToTrain(
            sequence.sample(
                rollout.id,
                group.id,
                math.nan if reward is None else reward,
                baseline=baseline(group, rollout, config) if alone else None,
                member=None if reward is None else group.scored.index(rollout),
                strand=strand,
                share=_share(sequence, rollout.tokens),
                turns=_stretches(group, rollout) or _turns(rollout, strand),
                path_counts=counts[strand] if counts else (),
            ),
            _without_failed(sequence, rollout, strand, config),
        )
        for strand, sequence in enumerate(group.sequences(rollout))
    ]


def of_replayed(kept: ReplayGroup, number: int, config: Config) -> list[SequenceToTrain]:
    """The sequences of member `number` of a group that was trained before."""
    member = kept.members[number]
    counts = _path_counts(member, config)
    return [
        SequenceToTrain(
            sequence.sample(
                member.rollout,
                kept.group,
                member.reward,
                member=number,
                strand=strand,
                share=_share(sequence, len(member.ids) // 4),
                turns=_turns(member, strand),
                path_counts=counts[strand] if counts else (),
            ),
            _without_failed(sequence, member, strand, config),
        )
        for strand, sequence in enumerate(kept.sequences(member))
    ]


def _without_failed(
    sequence: TrainingSequence, of: Rollout | ReplayMember, strand: int, config: Config
) -> TrainingSequence:
    """The sequence, with the tokens of failed calls of tools as errors, beside those that a
    verifier found, where `agent.mask_failed` says so."""
    if not of.strands or not config.agent.mask_failed:
        return sequence
    failed = failed_tokens(of.turns, of.strands[strand], config.agent.mask_failed)
    errors = tuple(sorted({*sequence.errors, *failed}))
    return msgspec.structs.replace(sequence, errors=errors)


def _share(sequence: TrainingSequence, tokens: int) -> float:
    """The part of a rollout's sampled `tokens` that a sequence of it has; 1 where there are
    none."""
    return sequence.trained / tokens if tokens else 1.0


def _turns(of: Rollout | ReplayMember, strand: int) -> list[tuple[int, int]]:
    """The turns of a strand and their tokens; none where no agent played."""
    return turn_tokens(of.turns, of.strands[strand]) if of.strands else []


def _stretches(group: Group, rollout: Rollout) -> list[tuple[int, int]]:
    """The stretches of a rollout that has forked, as turns, and their tokens; none of others."""
    if group.leaves == 1 or not rollout.compared:
        return []
    scored = group.scored
    forked = group.trees(scored)
    below = forked.below[scored.index(rollout)] if forked is not None else []
    if not below:
        return []
    tokens = [tokens for _, tokens in stretches(below)]
    return [*enumerate([*tokens, rollout.tokens - sum(tokens)])]


def _path_counts(of: Rollout | ReplayMember, config: Config) -> list[list[tuple[int, int]]]:
    """The `path_counts` of each strand; none where every token counts once."""
    if config.train.branches == "token" or len(of.strands) < 2:
        return []
    return path_counts(of.turns, of.strands)
