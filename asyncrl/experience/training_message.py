"""Training sequences as a message for a learner. Invariant: a run's coordinator and a loop written
by hand both pack here, so that both train alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from asyncrl.experience.group_facts import GroupFacts
from asyncrl.experience.sequence import (
    TrainingSequence,
    joined_behaviour,
    joined_ids,
    joined_routing,
)
from asyncrl.messages import MicroBatch, Sample
from asyncrl.staleness.loss_mask import loss_mask, trainable_by_lag


class TrainingMessage(NamedTuple):
    """A micro-batch with its buffers, and the number of its tokens that may enter the loss,
    by lag."""

    message: MicroBatch
    buffers: tuple[bytes, ...]
    trainable: Counter[int]


def training_message(
    step: int,
    index: int,
    pieces: Iterable[tuple[Sample, TrainingSequence]],
    facts: Mapping[int, GroupFacts],
    max_lag: int,
    *,
    mask_truncated: bool,
    whole_step: bool,
    max_age: int = 0,
) -> TrainingMessage:
    """Pack sequences as micro-batch `index` of a step, with the facts of groups by their number.

    Tokens older than `max_lag` versions stay out of the loss, and foreign ones older than
    `max_age`; with `mask_truncated`, so do
    responses that were cut at their budget. Lengths are sent only where advantages compare the
    `whole_step`, and parts, turns, keys and what lies above turns only of groups that have them.
    """
    samples, sequences = list[Sample](), list[TrainingSequence]()
    mask, trainable = bytearray(), Counter[int]()
    for sample, sequence in pieces:
        of_sequence = loss_mask(
            sequence.spans,
            step,
            max_lag,
            truncated=mask_truncated and sequence.finish == "length",
            errors=sequence.errors,
            max_age=max_age,
        )
        trainable.update(trainable_by_lag(sequence.spans, step, of_sequence))
        mask += of_sequence
        samples.append(sample)
        sequences.append(sequence)
    buffers: tuple[bytes, ...] = joined_ids(sequences), joined_behaviour(sequences), bytes(mask)
    if routing := joined_routing(sequences):
        buffers = (*buffers, routing)
    message = MicroBatch(
        step,
        index,
        samples=samples,
        rewards={number: group.rewards for number, group in facts.items()},
        parts={number: group.parts for number, group in facts.items() if any(group.parts)},
        lengths={number: group.lengths for number, group in facts.items()} if whole_step else {},
        turns={number: group.turns for number, group in facts.items() if any(group.turns)},
        keys={number: list(group.keys) for number, group in facts.items() if any(group.keys)},
        above={number: list(group.above) for number, group in facts.items() if any(group.above)},
        prompts={number: group.prompt for number, group in facts.items()},
        drawn={number: group.drawn for number, group in facts.items() if group.drawn is not None},
        forked={n: group.forked for n, group in facts.items() if group.forked is not None},
    )
    return TrainingMessage(message, buffers, trainable)
