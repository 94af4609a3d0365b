"""The distance between a model and the same model with rounded weights, as engines are sent them
(`publication.dtype`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

TOKENS = 32
_SEED = 20_240_817


def rounding_gap(model: PreTrainedModel, dtype: torch.dtype) -> float:
    """The mean absolute difference of the log-probabilities of `TOKENS` fixed ids (nats a token) by
    `model`, and by `model` with its weights rounded to `dtype`. Both compute in the model's own
    type, so only the rounding of weights matters. It makes a temporary copy of the weights."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    rounded = {name: weight.to(dtype).to(weight.dtype) for name, weight in weights.items()}
    difference = _log_probabilities(model, weights) - _log_probabilities(model, rounded)
    return float(difference.abs().mean())


def _log_probabilities(model: PreTrainedModel, weights: dict[str, Tensor]) -> Tensor:
    """Log-probabilities of the ids after the first, `[TOKENS]` float64."""
    embeddings: Any = model.get_input_embeddings()
    ids = np.random.default_rng(_SEED).integers(0, embeddings.num_embeddings, TOKENS + 1)
    batch = torch.from_numpy(ids).to(model.device)[None]
    with torch.no_grad():
        arguments = {"input_ids": batch, "use_cache": False}
        logits = torch.func.functional_call(model, weights, (), arguments).logits
        scores = torch.log_softmax(logits[0, :-1].double(), -1)
        return scores.gather(1, batch[0, 1:, None])[:, 0]
