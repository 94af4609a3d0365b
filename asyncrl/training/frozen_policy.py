"""Policies that do not learn. Invariant: scoring with one changes neither the model that learns nor
its gradients.

A `FrozenPolicy` is a model of its own, without gradients: a second copy of the weights, or another
model with the same vocabulary, divided among several ranks as the model that learns is. A
`HeldPolicy` is weights alone, which stand in for those of the model that learns while it scores.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncrl.algorithms.routing.routers import watch
from asyncrl.training.adapters import learning
from asyncrl.training.linear import accelerate
from asyncrl.training.packing import PackedBatch
from asyncrl.training.ranks.by_all import scored_by_all
from asyncrl.training.ranks.rank import ALONE, Rank
from asyncrl.training.stored_model import ModelRows
from asyncrl.training.stored_state import StoredRows


class Policy(Protocol):
    """A policy that scores tokens. All ranks make the same calls."""

    def scores(self, batches: Sequence[PackedBatch], temperature: float) -> list[Tensor]:
        """Log-probability of each response token of each packed batch under the temperature-scaled
        distribution, float32 [tokens], without gradient and in host memory."""
        ...

    def become(self, weights: Mapping[str, Tensor | StoredRows]) -> None:
        """Load these weights, whole, stored or as this rank's shards, each rounded to the policy's
        type. Raises ValueError, and changes nothing, where they are of another model."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of its weights, detached, tied ones once, of several ranks the shards;
        with adapters, only these."""
        ...


class FrozenPolicy:
    """A model that scores tokens. It owns `model`, of which `rank` keeps its shards, those of
    `weights` if it has no memory for its own."""

    def __init__(
        self, model: PreTrainedModel, rank: Rank = ALONE, weights: ModelRows | None = None
    ) -> None:
        nn.Module.train(model, False)
        nn.Module.requires_grad_(model, False)
        rank.divide(model, weights)
        accelerate(model)  # as in the learner: equal weights must round alike
        watch(model)
        self.model, self._rank = model, rank

    @staticmethod
    def like(model: PreTrainedModel) -> FrozenPolicy:
        """A copy of a model of one rank as it is now. The base of adapters never changes, and both
        share it."""
        changing = {id(p) for _, p in learning(model)}
        copies = {
            id(p): nn.Parameter(
                p.detach().clone() if id(p) in changing else p.detach(), requires_grad=False
            )
            for p in model.parameters()
        }
        return FrozenPolicy(copy.deepcopy(model, copies))

    def scores(self, batches: Sequence[PackedBatch], temperature: float) -> list[Tensor]:
        """Log-probabilities, as in `Policy`."""
        return scored_by_all(self._rank, self.model, batches, temperature)

    def become(self, weights: Mapping[str, Tensor | StoredRows]) -> None:
        """Load these weights, as in `Policy`."""
        _become(dict(learning(self.model)), weights, self._rank)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Its weights, as in `Policy`."""
        for name, parameter in learning(self.model):
            yield name, parameter.detach()


class HeldPolicy:
    """The weights that a model learns as they are now, held by each rank as it has its own."""

    def __init__(self, model: PreTrainedModel, rank: Rank) -> None:
        self._model, self._rank, self._place = model, rank, rank.stand_in(model)
        self._held = {name: p.detach().clone() for name, p in learning(model)}

    def scores(self, batches: Sequence[PackedBatch], temperature: float) -> list[Tensor]:
        """Log-probabilities, as in `Policy`."""
        with self._place.of(self._held) as model:
            return scored_by_all(self._rank, model, batches, temperature)

    def become(self, weights: Mapping[str, Tensor | StoredRows]) -> None:
        """Load these weights, as in `Policy`."""
        _become(self._held, weights, self._rank)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Its weights, as in `Policy`."""
        dtype = self._rank.computes(self._model)
        for name, held in self._held.items():
            yield name, held.to(dtype)


def policy_like(model: PreTrainedModel, rank: Rank) -> Policy:
    """The policy of a model with adapters as it is now, which shares its base."""
    return FrozenPolicy.like(model) if rank.size == 1 else HeldPolicy(model, rank)


@torch.no_grad()
def _become(
    own: Mapping[str, Tensor], weights: Mapping[str, Tensor | StoredRows], rank: Rank
) -> None:
    if {n: p.shape for n, p in own.items()} != {n: w.shape for n, w in weights.items()}:
        raise ValueError("the stored weights of the policy are of another model")
    for name, parameter in own.items():
        parameter.detach().copy_(rank.sharded(weights[name], like=parameter))
