"""AdamW whose moments are in 8-bit blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncrl.config.schema import TrainConfig
from asyncrl.training.optimizers import OptimizerRule, settings_of

if TYPE_CHECKING:
    from torch.optim import Optimizer


class EightBitAdamW(OptimizerRule):
    """`train.optimizer = "adamw8bit"`."""

    kind = "adamw8bit"
    state_bytes = 2

    def make(self, groups: list[dict[str, Any]], train: TrainConfig) -> Optimizer:
        from asyncrl.training.small_moments import EightBit, PiecewiseAdamW

        return PiecewiseAdamW(groups, EightBit(), **settings_of(train))
