"""Advantages of a micro-batch, and the gradients that some of them need. Invariant: no gradient
that is being accumulated is touched.

A minimum-variance baseline weighs a group's rewards by the squared norm of each rollout's own
gradient, which is known after a pass over the group only; so it costs one more forward and backward
pass of every rollout alone, and its proxy one more forward pass.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.ipc.messages import MicroBatch
from asyncrl.training.batch import Batch
from asyncrl.training.forward import log_probabilities, response_logits
from asyncrl.training.packing import part_of
from staleness.advantages import Advantages, Kind, advantages
from staleness.ratios import log_ratio, ratio
from staleness.vcpo import logit_norm, minimum_variance, minimum_variance_logits


def advantages_of(
    batch: MicroBatch, tensors: Batch, model: PreTrainedModel, kind: str, temperature: float
) -> Advantages:
    """Advantage of each sample, by `kind` (`train.advantage`), and whether it is trained. Raises
    ValueError as `advantages` does, and where a minimum-variance baseline would be of a part of a
    group."""
    if kind not in ("min_variance", "min_variance_logits"):
        return advantages(cast(Kind, kind), batch.samples, batch.rewards, batch.parts)
    here = Counter(sample.group for sample in batch.samples)
    for group, count in here.items():
        if count != (members := len(batch.rewards.get(group, ()))):
            raise ValueError(
                f"group {group} came with {count} of its {members} members, and its baseline "
                "needs all of them"
            )
    samples = batch.samples
    if kind == "min_variance":
        value = minimum_variance(samples, *_alone(tensors, len(samples), model, temperature))
    else:
        weight, token_norm, usable = _together(tensors, len(samples), model, temperature)
        value = minimum_variance_logits(samples, weight, token_norm, usable, tensors.sample_index)
    return Advantages(value, torch.ones(len(samples), dtype=torch.bool))


def _alone(
    batch: Batch, samples: int, model: PreTrainedModel, temperature: float
) -> tuple[Tensor, Tensor]:
    """Of each sample, the ratio of current to behaviour policy of the whole rollout, and the
    squared norm of the gradient of its log-probability; float64 [samples], over the tokens that
    arrived and are finite. A norm that is not finite is 0: the step's own gradient is not either
    then, and is not taken."""
    weight, norm_squared = (
        torch.ones(samples, dtype=torch.float64),
        torch.zeros(samples, dtype=torch.float64),
    )
    parameters = list(model.parameters())
    for bundle in batch.bundles:
        sample_index, arrived = batch.sample_index[bundle.tokens], batch.mask[bundle.tokens]
        for sample in torch.unique(sample_index[arrived]).tolist():
            part = part_of(bundle, arrived & (sample_index == sample))
            current = log_probabilities(model, part, temperature)
            log, finite = log_ratio(
                current.detach(), batch.behaviour[part.tokens].to(current.device)
            )
            if finite.any():
                gradients = torch.autograd.grad(
                    current[finite].sum(), parameters, allow_unused=True
                )
                norms = torch._foreach_norm(
                    [gradient for gradient in gradients if gradient is not None]
                )
                norm_squared[sample] = torch.stack(norms).double().square().sum()
                weight[sample] = ratio(log.double().sum())
    return weight, norm_squared.nan_to_num(0.0, posinf=0.0)


def _together(
    batch: Batch, samples: int, model: PreTrainedModel, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The ratio of each sample as in `_alone`, and of each response token `vcpo.logit_norm`
    (float32) and whether it is finite and arrived (bool). From forward passes of whole bundles."""
    log, token_norm = torch.zeros_like(batch.behaviour), torch.zeros_like(batch.behaviour)
    usable = torch.zeros_like(batch.mask)
    for bundle in batch.bundles:
        with torch.no_grad():
            logits = response_logits(model, bundle, temperature)
        targets, tokens = bundle.targets.to(logits.device), bundle.tokens
        current = -F.cross_entropy(logits, targets, reduction="none")
        of_bundle, finite = log_ratio(current, batch.behaviour[tokens].to(current.device))
        log[tokens], usable[tokens] = of_bundle.cpu(), batch.mask[tokens] & finite.cpu()
        token_norm[tokens] = logit_norm(logits, targets).nan_to_num(0.0).cpu()
    total = torch.zeros(samples, dtype=torch.float64).index_add(
        0, batch.sample_index, torch.where(usable, log, 0.0).double()
    )
    return ratio(total), token_norm, usable
