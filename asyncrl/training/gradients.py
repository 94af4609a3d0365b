"""Advantages of a micro-batch, and the gradients that some of them need. Invariant: the gradients
that are being accumulated do not change.

A minimum-variance baseline weighs a group's rewards by the squared norm of each rollout's own
gradient, which is known only after a pass over the group. So it costs one more forward and backward
pass of each single rollout, and its approximation one more forward pass.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.algorithms.advantage_tensors import sample_weights, token_values
from asyncrl.algorithms.advantages import Advantage, RewardedSamples
from asyncrl.algorithms.advantages.by_chance import ByChance
from asyncrl.algorithms.advantages.by_root import ByRoot
from asyncrl.algorithms.advantages.group_weight import GroupWeight
from asyncrl.algorithms.ratios import log_ratio, ratio
from asyncrl.config.schema import TrainConfig
from asyncrl.config.strategies import blamed
from asyncrl.messages import MicroBatch
from asyncrl.staleness.vcpo import logit_norm, squared_norms
from asyncrl.training.adapters import learning
from asyncrl.training.batch import Batch
from asyncrl.training.forward import log_probabilities, log_probability, measured_by_logits
from asyncrl.training.packing import PackedBatch, part_of
from asyncrl.training.ranks.by_all import measured_by_all
from asyncrl.training.ranks.rank import ALONE, Rank


def token_advantages(
    batch: MicroBatch,
    tensors: Batch,
    model: PreTrainedModel,
    advantage: Advantage,
    temperature: float,
    weight: GroupWeight,
    train: TrainConfig,
    rank: Rank = ALONE,
) -> tuple[Tensor, Tensor, Tensor]:
    """Advantage of each sampled token (float32 [tokens]), which samples are trained (bool
    [samples]), and the weights of their groups (float32 [samples]): it is that of its rollout, or
    of its turn, times the weight. `train` has the names of both. Raises ValueError where an
    advantage that needs gradients would be of a part of a group, and StrategyError where one of
    them raises itself."""
    gradients = None
    if advantage.needs_gradients:
        here = Counter(sample.group for sample in batch.samples)
        for group, count in here.items():
            if count != (members := len(batch.rewards.get(group, ()))):
                raise ValueError(
                    f"group {group} came with {count} of its {members} members, and its baseline "
                    "needs all of them"
                )
        gradients = ModelGradients(tensors, len(batch.samples), model, temperature, rank)
    given = RewardedSamples(
        batch.samples,
        batch.rewards,
        batch.parts,
        gradients,
        batch.lengths,
        batch.turns,
        batch.keys,
        batch.prompts,
        batch.above,
        batch.drawn,
        batch.forked,
    )
    if batch.drawn:
        advantage = ByChance(advantage)
    if batch.forked:
        advantage = ByRoot(advantage)
    with blamed("advantage", train.advantage):
        found = token_values(advantage, given)
    with blamed("group weight", train.group_weight):
        weights = sample_weights(weight, given)
    return found.value * weights[tensors.sample_index], found.trainable, weights


class ModelGradients:
    """Gradients of a micro-batch's rollouts by the model's parameters, computed on demand.
    Satisfies `asyncrl.algorithms.advantages.GradientNorms`."""

    def __init__(
        self,
        batch: Batch,
        samples: int,
        model: PreTrainedModel,
        temperature: float,
        rank: Rank = ALONE,
    ) -> None:
        self._batch, self._samples = batch, samples
        self._model, self._temperature, self._rank = model, temperature, rank

    def exact(self) -> tuple[Tensor, Tensor]:
        """The ratio of current to behaviour policy of each sample's whole rollout, and the squared
        norm of the gradient of its log-probability; float64 [samples], over the tokens that arrived
        and are finite. All ranks make each pass together, as gradients are sums over them. A norm
        that is not finite is 0: the step's own gradient is not finite either then, and is
        skipped."""
        batch = self._batch
        weight = torch.ones(self._samples, dtype=torch.float64)
        norm_squared = torch.zeros(self._samples, dtype=torch.float64)
        self._rank.let_go(self._model)
        parameters = [parameter for _, parameter in learning(self._model)]
        for packed in batch.packed:
            sample_index = batch.sample_index[packed.tokens]
            arrived = batch.mask[packed.tokens]
            for sample in torch.unique(sample_index[arrived]).tolist():
                part = part_of(packed, arrived & (sample_index == sample))
                current = log_probabilities(self._model, part, self._temperature)
                log, finite = log_ratio(
                    current.detach(), batch.behaviour[part.tokens].to(current.device)
                )
                if finite.any():
                    norm_squared[sample] = self._rank.squared_norm(
                        current[finite].sum(), parameters
                    )
                    weight[sample] = ratio(log.double().sum())
        self._rank.let_go(self._model)
        return weight, norm_squared.nan_to_num(0.0, posinf=0.0)

    def from_logits(self) -> tuple[Tensor, Tensor]:
        """The ratio of each sample as in `exact`, and the sum of `vcpo.logit_norm` over its tokens
        that arrived and are finite; float64 [samples]. From forward passes of whole packed
        batches."""
        batch = self._batch
        log, token_norm = torch.zeros_like(batch.behaviour), torch.zeros_like(batch.behaviour)
        usable = torch.zeros_like(batch.mask)
        every = measured_by_all(self._rank, self._model, batch.packed, self._norms, 2)
        for packed, (current, norm) in zip(batch.packed, every, strict=True):
            tokens = packed.tokens
            of_packed, finite = log_ratio(current, batch.behaviour[tokens])
            log[tokens], usable[tokens] = of_packed, batch.mask[tokens] & finite
            token_norm[tokens] = norm.nan_to_num(0.0)
        total = torch.zeros(self._samples, dtype=torch.float64).index_add(
            0, batch.sample_index, torch.where(usable, log, 0.0).double()
        )
        norms = squared_norms(token_norm, usable, batch.sample_index, self._samples)
        return ratio(total), norms

    def _norms(self, packed: PackedBatch) -> tuple[Tensor, ...]:
        """Log-probability and `vcpo.logit_norm` of each response token, float32 [tokens]."""
        found = measured_by_logits(
            self._model,
            packed,
            self._temperature,
            lambda *rows: (log_probability(*rows), logit_norm(*rows)),
        )
        return tuple(found)
