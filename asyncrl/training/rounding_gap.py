"""The distance between a model and the same model with the weights that engines are sent, which
may be rounded (`publication.dtype`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

TOKENS = 32
_SEED = 20_240_817


def rounding_gap(model: PreTrainedModel, sent: Mapping[str, Tensor]) -> float:
    """The mean absolute difference of the log-probabilities of `TOKENS` fixed ids (nats a token) by
    `model`, and by `model` with the weights `sent`, of any type. Both compute in the model's own
    type, so only the rounding of weights matters."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    rounded = {name: sent[name].to(weight.dtype) for name, weight in weights.items()}
    difference = _log_probabilities(model, weights) - _log_probabilities(model, rounded)
    return float(difference.abs().mean())


def _log_probabilities(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> Tensor:
    """Log-probabilities of the ids after the first, `[TOKENS]` float64."""
    embeddings: Any = model.get_input_embeddings()
    ids = np.random.default_rng(_SEED).integers(0, embeddings.num_embeddings, TOKENS + 1)
    batch = torch.from_numpy(ids).to(model.device)[None]
    with torch.no_grad():
        arguments = {"input_ids": batch, "use_cache": False}
        logits = torch.func.functional_call(model, dict(weights), (), arguments).logits
        scores = torch.log_softmax(logits[0, :-1].double(), -1)
        return scores.gather(1, batch[0, 1:, None])[:, 0]
