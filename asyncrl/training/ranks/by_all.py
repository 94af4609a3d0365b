"""Measures of tokens by a model, of which each rank computes its share. Invariant: every rank knows
all of them afterwards, and makes as many passes as any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training.forward import log_probabilities
from asyncrl.training.packing import PackedBatch
from asyncrl.training.ranks.rank import Rank


@torch.no_grad()
def measured_by_all(
    rank: Rank,
    model: PreTrainedModel,
    batches: Sequence[PackedBatch],
    measure: Callable[[PackedBatch], Sequence[Tensor]],
    measures: int = 1,
) -> list[tuple[Tensor, ...]]:
    """Of each packed batch as many `measures`, each float32 [tokens], in host memory: what
    `measure` gives for it, by passes of `model` without gradient. All ranks call this alike."""
    sizes = [len(packed.tokens) for packed in batches]
    flat = torch.zeros(measures, sum(sizes))
    pieces = torch.split(flat, sizes, dim=1) if sizes else ()
    for index in rank.share(batches):
        if index is None:
            rank.keep_up(model, backward=False)
            continue
        for place, own in zip(pieces[index], measure(batches[index]), strict=True):
            place.copy_(own)
    rank.let_go(model)
    found = rank.added(flat)
    return [tuple(piece) for piece in torch.split(found, sizes, dim=1)] if sizes else []


def scored_by_all(
    rank: Rank, model: PreTrainedModel, batches: Sequence[PackedBatch], temperature: float
) -> list[Tensor]:
    """Log-probabilities of each packed batch's response tokens, as `measured_by_all`."""
    every = measured_by_all(
        rank, model, batches, lambda packed: (log_probabilities(model, packed, temperature),)
    )
    return [scores for (scores,) in every]
