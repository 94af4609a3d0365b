"""signs.py: steps of one length, along the sign of an average of the gradients."""

from __future__ import annotations

from typing import Any

from asyncrl.config.schema import TrainConfig
from asyncrl.training.optimizers import OptimizerRule


class Signs(OptimizerRule):
    """Keeps the average alone: 4 bytes of a weight."""

    state_bytes = 4

    def make(self, groups: list[dict[str, Any]], train: TrainConfig) -> Any:
        import torch

        class AlongSigns(torch.optim.Optimizer):
            @torch.no_grad()
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                for group in self.param_groups:
                    for weight in group["params"]:
                        if weight.grad is None:
                            continue
                        state = self.state[weight]
                        if not state:
                            state["mean"] = torch.zeros_like(weight)
                        state["mean"].lerp_(weight.grad, 1 - train.beta1)
                        weight.add_(state["mean"].sign(), alpha=-group["lr"])

        return AlongSigns(groups, {"lr": train.lr, "weight_decay": train.weight_decay})
