"""Optimizers that `train.optimizer` may name, and what each has in common. Invariant: a file here
is an optimizer by its name, and no list names it.

No torch here, nor in its files before one is made: `asyncrl check` reads their bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from asyncrl.config.schema import TrainConfig

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer


class OptimizerRule(ABC):
    """A way to change weights by their gradients; docs/extending.md adds one.

    `state_bytes` are those that it keeps of each weight. `on_host`: they are in host memory, while
    the weights are on a GPU. `devices` are those on which it runs.

    >>> class Plain(OptimizerRule):
    ...     state_bytes = 0
    ...     def make(self, groups, train):
    ...         import torch
    ...         return torch.optim.SGD(groups, lr=train.lr)
    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weight.grad = torch.ones(1)
    >>> Plain().make([{"params": [weight]}], TrainConfig(lr=0.25)).step()
    >>> weight.item()
    0.75
    """

    kind: ClassVar[str] = ""
    state_bytes: ClassVar[int] = 8
    on_host: ClassVar[bool] = False
    devices: ClassVar[Sequence[str]] = ("cpu", "cuda")

    @abstractmethod
    def make(self, groups: list[dict[str, Any]], train: TrainConfig) -> Optimizer:
        """Return an optimizer of these groups of float32 weights: matrices, and the rest with a
        `weight_decay` of its own, 0. Of several ranks the weights are shards (DTensor). Its state
        of a weight is tensors of that weight's shape, made by `zeros_like`, and numbers."""


def settings_of(train: TrainConfig) -> dict[str, Any]:
    """The settings that every AdamW is given.

    >>> settings_of(TrainConfig(lr=0.1))["betas"]
    (0.9, 0.99)
    """
    return {
        "lr": train.lr,
        "betas": (train.beta1, train.beta2),
        "weight_decay": train.weight_decay,
    }


def weights_of(groups: Sequence[dict[str, Any]]) -> list[Parameter]:
    """All weights of groups."""
    return [weight for group in groups for weight in group["params"]]
