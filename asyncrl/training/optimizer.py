"""The optimizer of a learner, as `train.optimizer` says, with decay for matrices only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from asyncrl.config.schema import TrainConfig
from asyncrl.config.strategies import blamed
from asyncrl.training.optimizer_table import optimizer_rule_of
from asyncrl.training.small_moments import PiecewiseAdamW


def optimizer_of(weights: Sequence[nn.Parameter], train: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer of these weights, with the settings' rate, memories and decay. One-dimensional
    weights (the scales of norms, biases) do not decay: a scale near zero would not be a small
    weight, but a layer without output."""
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in weights if weight.dim() >= 2]},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    with blamed("optimizer", train.optimizer):
        return optimizer_rule_of(train).make(groups, train)


def state_device(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> torch.device:
    """The device on which an optimizer keeps its state of a weight."""
    if isinstance(optimizer, PiecewiseAdamW):
        return optimizer.device_of(weight)
    return weight.device
