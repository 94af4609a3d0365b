"""AdamW with float32 moments in host memory, which a step takes to the GPU and back by pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncrl.config.schema import TrainConfig
from asyncrl.training.optimizers import OptimizerRule, settings_of

if TYPE_CHECKING:
    from torch.optim import Optimizer


class OffloadedAdamW(OptimizerRule):
    """`train.optimizer = "adamw_offloaded"`. On a processor they are in host memory anyway."""

    kind = "adamw_offloaded"
    on_host = True
    devices = ("cuda",)

    def make(self, groups: list[dict[str, Any]], train: TrainConfig) -> Optimizer:
        from asyncrl.training.host_moments import OnHost
        from asyncrl.training.small_moments import PiecewiseAdamW

        return PiecewiseAdamW(groups, OnHost(), **settings_of(train))
