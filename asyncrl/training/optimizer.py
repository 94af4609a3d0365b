"""The optimizer of a learner: AdamW (arXiv 1711.05101), with decay for matrices only, and with
moments as `train.optimizer` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from asyncrl.config.schema import TrainConfig
from asyncrl.training.small_moments import Bfloat16, EightBit, Moments, SmallAdamW

_SMALL: dict[str, Callable[[], Moments]] = {"adamw_bf16": Bfloat16, "adamw8bit": EightBit}


def adamw(weights: Sequence[nn.Parameter], train: TrainConfig) -> torch.optim.Optimizer:
    """AdamW of these weights, with the settings' rate, memories and decay. One-dimensional weights
    (the scales of norms, biases) do not decay: a scale near zero would not be a small weight, but a
    layer without output."""
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in weights if weight.dim() >= 2]},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    settings: dict[str, Any] = {
        "lr": train.lr,
        "betas": (train.beta1, train.beta2),
        "weight_decay": train.weight_decay,
    }
    if train.optimizer == "adamw":
        return torch.optim.AdamW(groups, foreach=True, **settings)
    if train.optimizer == "adamw_fused":
        # which needs numbers; without them the memory is that of one weight after the other
        numbers = not any(weight.is_meta for weight in weights)
        return torch.optim.AdamW(groups, fused=numbers, foreach=False, **settings)
    return SmallAdamW(groups, _SMALL[train.optimizer](), **settings)
