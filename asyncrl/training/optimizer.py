"""The optimizer of a learner: AdamW (arXiv 1711.05101), with decay for matrices only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from asyncrl.config.schema import TrainConfig


def adamw(weights: Sequence[nn.Parameter], train: TrainConfig) -> torch.optim.AdamW:
    """AdamW of these weights, with the settings' rate, memories and decay. One-dimensional weights
    (the scales of norms, biases) do not decay: a scale near zero would not be a small weight, but a
    layer without output."""
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
