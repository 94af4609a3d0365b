"""Micro-batches that wait for their step to be closed. Invariant: each sample is in one minibatch,
with all of its group.

Usually the gradient of a micro-batch is computed as soon as it arrives. Where a step takes several
updates, or a correction compares tokens of the whole step, that is not possible. Then it is held,
with the log-probabilities of its tokens under the policy that the step starts from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.messages import Sample, TokenCount
from asyncrl.training.batch import Batch
from asyncrl.training.packing import PackedBatch, part_of


class HeldBatch(NamedTuple):
    """A micro-batch with each token's `advantage` (float32 [tokens]) and which samples are
    `trainable` (bool [samples]).

    Of the policy that the step starts from, float32 [tokens]: the log-probabilities `start`, and
    the `entropy`; None where they are not needed. `prox`: log-probabilities of the proximal policy,
    None where that is the behaviour policy. `outcome` (int64 [tokens], -1: none yet) changes with
    each update.
    """

    samples: Sequence[Sample]
    batch: Batch
    advantage: Tensor
    trainable: Tensor
    start: Tensor
    entropy: Tensor | None
    prox: Tensor | None
    outcome: Tensor

    def proximal(self, packed: PackedBatch, current: Tensor) -> Tensor | None:
        """Log-probabilities of a packed batch's tokens under the proximal policy, on the device of
        `current`; None where that is the behaviour policy."""
        return None if self.prox is None else self.prox[packed.tokens].to(current.device)

    def settle(self, packed: PackedBatch, outcome: Tensor, trained: int) -> None:
        """Record the outcomes of a packed batch's tokens in an update, int64 [tokens]. A token that
        any update trained keeps the outcome `trained`."""
        before = self.outcome[packed.tokens]
        self.outcome[packed.tokens] = torch.where(before == trained, before, outcome.cpu())


class HeldPart(NamedTuple):
    """Some samples of a held batch, packed."""

    held: HeldBatch
    packed: PackedBatch


def minibatches(every: Sequence[HeldBatch], count: int) -> list[list[HeldPart]]:
    """Divide held batches into `count` (at least 1) parts of equally many groups, up to one, in the
    order of the groups. Parts without a group are omitted."""
    groups = list(dict.fromkeys(sample.group for held in every for sample in held.samples))
    minibatch = {group: number * count // len(groups) for number, group in enumerate(groups)}
    parts: list[list[HeldPart]] = [[] for _ in range(count)]
    for held in every:
        whose = torch.tensor([minibatch[sample.group] for sample in held.samples])
        for packed in held.batch.packed:
            of_token = whose[held.batch.sample_index[packed.tokens]]
            for number in torch.unique(of_token).tolist():
                wanted = of_token == number
                part = packed if wanted.all() else part_of(packed, wanted)
                parts[number].append(HeldPart(held, part))
    return [part for part in parts if part]


def token_counts(
    samples: Sequence[Sample], sample_index: Tensor, outcome: Tensor, reasons: Sequence[str]
) -> list[TokenCount]:
    """Count each sample's tokens by their `outcome` (int64 [tokens]), an index of `reasons`, of
    which the first means trained."""
    table = torch.zeros(len(samples), len(reasons), dtype=torch.int64)
    table.index_put_((sample_index, outcome), torch.ones_like(outcome), accumulate=True)
    return [
        TokenCount(
            sample.rollout,
            row[0],
            {reason: count for reason, count in zip(reasons[1:], row[1:], strict=True) if count},
        )
        for sample, row in zip(samples, table.tolist(), strict=True)
    ]
