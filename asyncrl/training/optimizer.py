"""The optimizer of a learner: AdamW (arXiv 1711.05101), whose decay is of matrices alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from asyncrl.config.schema import TrainConfig


def adamw(weights: Sequence[nn.Parameter], train: TrainConfig) -> torch.optim.AdamW:
    """AdamW of these weights, with the settings' rate, memories and decay. What has one dimension,
    as the scales of norms and biases do, is not pulled towards zero: for a scale that is no small
    weight, but a layer that says nothing."""
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in weights if weight.dim() >= 2]},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=train.lr,
        betas=(train.beta1, train.beta2),
        weight_decay=train.weight_decay,
        foreach=True,
    )
