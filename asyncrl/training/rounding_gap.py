"""The distance between a model and the same model with the weights that engines are sent, which
may be rounded (`publication.dtype`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training.ranks.rank import ALONE, Rank

TOKENS = 32
_SEED = 20_240_817


def rounding_gap(
    model: PreTrainedModel, sent: Iterable[tuple[str, Tensor]], rank: Rank = ALONE
) -> float:
    """The mean absolute difference of the log-probabilities of `TOKENS` fixed ids (nats a token) by
    `model`, and by `model` with the weights `sent`, whole and of any type. Both compute in the
    model's own type, so only the rounding of weights matters. All ranks call this alike, and keep
    their shards of `sent`, which is taken one after another."""
    rank.let_go(model)
    own = dict(model.named_parameters())
    rounded = {
        name: rank.sharded(tensor, like=own[name]).to(own[name].dtype, copy=True)
        for name, tensor in sent
    }
    scores = _log_probabilities(model)
    with rank.stand_in(model).of(rounded) as other:
        difference = scores - _log_probabilities(other)
    return float(difference.abs().mean())


def _log_probabilities(model: PreTrainedModel) -> Tensor:
    """Log-probabilities of the ids after the first, `[TOKENS]` float64."""
    embeddings: Any = model.get_input_embeddings()
    ids = np.random.default_rng(_SEED).integers(0, embeddings.num_embeddings, TOKENS + 1)
    batch = torch.from_numpy(ids).to(model.device)[None]
    with torch.no_grad():
        logits = model(input_ids=batch, use_cache=False).logits
        scores = torch.log_softmax(logits[0, :-1].double(), -1)
        return scores.gather(1, batch[0, 1:, None])[:, 0]
