"""AdamW with float32 moments, torch's own, in one pass over each weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncrl.config.schema import TrainConfig
from asyncrl.training.optimizers import OptimizerRule, settings_of, weights_of

if TYPE_CHECKING:
    from torch.optim import Optimizer


class FusedAdamW(OptimizerRule):
    """`train.optimizer = "adamw_fused"`. On a GPU it was not tried."""

    kind = "adamw_fused"
    devices = ("cpu",)

    def make(self, groups: list[dict[str, Any]], train: TrainConfig) -> Optimizer:
        import torch

        # which needs numbers; without them the memory is that of one weight after the other
        numbers = not any(weight.is_meta for weight in weights_of(groups))
        return torch.optim.AdamW(groups, fused=numbers, foreach=False, **settings_of(train))
