"""Training sequences as the message that a learner takes. Invariant: whoever trains (a run's
coordinator, a loop written by hand) packs here, so that both train alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from asyncrl.experience.sequence import TrainingSequence, joined_behaviour, joined_ids
from asyncrl.ipc.messages import MicroBatch, Sample
from staleness.truncation import loss_mask, trainable_by_lag


class Groups(NamedTuple):
    """Facts of the groups that samples are compared in, by group (see `MicroBatch`)."""

    rewards: dict[int, list[float]]
    parts: dict[int, list[list[float]]]
    lengths: dict[int, list[int]]
    turns: dict[int, list[list[float]]]


class TrainingMessage(NamedTuple):
    """A micro-batch with its three buffers, and how many of its tokens may enter the loss, by
    lag."""

    message: MicroBatch
    buffers: tuple[bytes, bytes, bytes]
    trainable: Counter[int]


def training_message(
    step: int,
    index: int,
    pieces: Iterable[tuple[Sample, TrainingSequence]],
    groups: Groups,
    max_lag: int,
    *,
    mask_truncated: bool,
) -> TrainingMessage:
    """Pack sequences as micro-batch `index` of a step. Tokens older than `max_lag` versions stay
    out of the loss, and with `mask_truncated` responses that were cut at their budget do."""
    samples, sequences = list[Sample](), list[TrainingSequence]()
    mask, trainable = bytearray(), Counter[int]()
    for sample, sequence in pieces:
        of_sequence = loss_mask(
            sequence.spans,
            step,
            max_lag,
            truncated=mask_truncated and sequence.finish == "length",
            errors=sequence.errors,
        )
        trainable.update(trainable_by_lag(sequence.spans, step, of_sequence))
        mask += of_sequence
        samples.append(sample)
        sequences.append(sequence)
    buffers = joined_ids(sequences), joined_behaviour(sequences), bytes(mask)
    return TrainingMessage(MicroBatch(step, index, samples, *groups), buffers, trainable)
