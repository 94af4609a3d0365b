"""Micro-batches that wait for their step to be closed. Invariant: each token is in one minibatch.

Usually the gradient of a micro-batch is computed as soon as it arrives. Where a step takes several
updates, or a correction compares tokens of the whole step, that is not possible. Then it is held,
with the log-probabilities of its tokens under the policy that the step starts from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.minibatches.minibatch_rule import MinibatchRule
from asyncrl.algorithms.ratios import log_ratio
from asyncrl.algorithms.tokens import sum_by_rollout
from asyncrl.messages import Sample
from asyncrl.training.batch import Batch
from asyncrl.training.packing import PackedBatch, part_of


class HeldBatch(NamedTuple):
    """A micro-batch with each token's `advantage` (float32 [tokens]) and which samples are
    `trainable` (bool [samples]).

    Of the policy that the step starts from, float32 [tokens]: the log-probabilities `start`, and
    the `entropy`; None where they are not needed. `prox`: log-probabilities of the proximal policy,
    None where that is the behaviour policy. `outcome` (int64 [tokens], -1: none yet) changes with
    each update, as do `factors` of the advantages (float64 [samples], 1 at first), which all
    samples of a rollout have in common.
    """

    samples: Sequence[Sample]
    batch: Batch
    advantage: Tensor
    trainable: Tensor
    start: Tensor
    entropy: Tensor | None
    prox: Tensor | None
    outcome: Tensor
    factors: Tensor

    @property
    def weighed(self) -> Tensor:
        """Each token's advantage in the next update, float32 [tokens]."""
        return self.advantage * self.factors.float()[self.batch.sample_index]

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


def minibatches(
    every: Sequence[HeldBatch], rule: MinibatchRule, count: int
) -> list[list[HeldPart]]:
    """Divide held batches into the minibatches of a rule, in their order; `count` is
    `train.minibatches`. Raises ValueError for a rule that gives not one number of at least 0 to
    each token."""
    places = dict[int, int]()
    for held in every:
        for sample in held.samples:
            places.setdefault(sample.group, len(places))
    sizes = [len(held.batch.turn) for held in every]
    if not sum(sizes):
        return []
    groups = torch.cat(
        [
            torch.tensor([places[s.group] for s in held.samples])[held.batch.sample_index]
            for held in every
        ]
    )
    numbers = rule.numbers(groups, torch.cat([held.batch.turn for held in every]), count)
    if numbers.shape != groups.shape or numbers.is_floating_point() or int(numbers.min()) < 0:
        raise ValueError("it must return an integer of at least 0 for each token")
    parts = dict[int, list[HeldPart]]()
    for held, of_held in zip(every, torch.split(numbers, sizes), strict=True):
        for packed in held.batch.packed:
            of_token = of_held[packed.tokens]
            for number in torch.unique(of_token).tolist():
                wanted = of_token == number
                part = packed if wanted.all() else part_of(packed, wanted)
                parts.setdefault(number, []).append(HeldPart(held, part))
    return [parts[number] for number in sorted(parts)]


def carry(
    rule: MinibatchRule,
    parts: Sequence[HeldPart],
    arrived: Sequence[Tensor],
    scores: Sequence[Tensor],
) -> None:
    """Change the factors of the rollouts of a minibatch after its update. Of each part, which of
    its tokens may enter the loss (`arrived`, bool [tokens]), and their log-probabilities under the
    policy after it (`scores`, float32 [tokens])."""
    found = dict[int, tuple[HeldBatch, Tensor, Tensor]]()
    for (held, packed), here, now in zip(parts, arrived, scores, strict=True):
        _, added, usable = found.setdefault(
            id(held), (held, torch.zeros_like(held.start), torch.zeros_like(held.batch.mask))
        )
        change = log_ratio(now, held.start[packed.tokens])
        added[packed.tokens], usable[packed.tokens] = change.value, change.finite & here
    for held, added, usable in found.values():
        known, rollout = torch.unique(
            torch.tensor([sample.rollout for sample in held.samples]), return_inverse=True
        )
        before = held.factors.new_ones(len(known)).scatter(0, rollout, held.factors)
        sums = sum_by_rollout(added, usable, rollout[held.batch.sample_index])
        means = before.new_zeros(len(known))
        means[: len(sums.mean)] = sums.mean
        held.factors.copy_(rule.carried(before, means)[rollout])
