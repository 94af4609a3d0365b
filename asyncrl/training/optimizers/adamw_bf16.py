"""AdamW whose moments are in bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncrl.config.schema import TrainConfig
from asyncrl.training.optimizers import OptimizerRule, settings_of

if TYPE_CHECKING:
    from torch.optim import Optimizer


class Bfloat16AdamW(OptimizerRule):
    """`train.optimizer = "adamw_bf16"`."""

    kind = "adamw_bf16"
    state_bytes = 4

    def make(self, groups: list[dict[str, Any]], train: TrainConfig) -> Optimizer:
        from asyncrl.training.small_moments import Bfloat16, PiecewiseAdamW

        return PiecewiseAdamW(groups, Bfloat16(), **settings_of(train))
