"""AdamW (arXiv 1711.05101) with float32 moments, torch's own, some operations over all weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncrl.config.schema import TrainConfig
from asyncrl.training.optimizers import OptimizerRule, settings_of

if TYPE_CHECKING:
    from torch.optim import Optimizer


class AdamW(OptimizerRule):
    """`train.optimizer = "adamw"`."""

    kind = "adamw"

    def make(self, groups: list[dict[str, Any]], train: TrainConfig) -> Optimizer:
        import torch

        return torch.optim.AdamW(groups, foreach=True, **settings_of(train))
