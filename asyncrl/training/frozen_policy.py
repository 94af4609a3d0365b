"""A policy that does not learn. Invariant: scoring with it changes neither the model that learns
nor its gradients.

It is a model of its own, without gradients: a second copy of the weights, or another model with the
same vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncrl.algorithms.routing.routers import watch
from asyncrl.training.adapters import learning
from asyncrl.training.forward import log_probabilities
from asyncrl.training.linear import accelerate
from asyncrl.training.packing import PackedBatch


class FrozenPolicy:
    """A model that scores tokens. It owns `model`."""

    def __init__(self, model: PreTrainedModel) -> None:
        nn.Module.train(model, False)
        nn.Module.requires_grad_(model, False)
        accelerate(model)  # as in the learner: equal weights must round alike
        watch(model)
        self.model = model

    @staticmethod
    def like(model: PreTrainedModel) -> FrozenPolicy:
        """A copy of a model as it is now. The base of adapters never changes, and both share it."""
        changing = {id(p) for _, p in learning(model)}
        copies = {
            id(p): nn.Parameter(
                p.detach().clone() if id(p) in changing else p.detach(), requires_grad=False
            )
            for p in model.parameters()
        }
        return FrozenPolicy(copy.deepcopy(model, copies))

    @torch.no_grad()
    def score(self, packed: PackedBatch, temperature: float) -> Tensor:
        """Log-probability of each response token under the temperature-scaled distribution, float32
        [tokens], without gradient."""
        return log_probabilities(self.model, packed, temperature)

    @torch.no_grad()
    def become(self, weights: Mapping[str, Tensor]) -> None:
        """Load these weights, each rounded to the model's type. Raises ValueError, and changes
        nothing, where they are of another model."""
        own = dict(learning(self.model))
        if {n: p.shape for n, p in own.items()} != {n: w.shape for n, w in weights.items()}:
            raise ValueError("the stored weights of the policy are of another model")
        for name, parameter in own.items():
            parameter.copy_(weights[name])

    def weights(self) -> dict[str, Tensor]:
        """Its weights by name, detached, tied ones once; with adapters, only these."""
        return {name: parameter.detach() for name, parameter in learning(self.model)}
