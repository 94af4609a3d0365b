"""The layout of the experts that a server returns for a model. Invariant: each router of the model
has one row of its own, so that a record is what the trainer's routers read."""

from __future__ import annotations

import re

from torch import nn

from asyncrl.algorithms.routing.routers import found_routers
from asyncrl.engines.servers.server_routing import RoutingLayout

CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k")
"""Names that families have for the number of experts of a token."""


def layout_of(model: nn.Module) -> RoutingLayout:
    """The layout for a transformers model. Raises ValueError where servers cannot say which experts
    it chose."""
    names = {module: name for name, module in model.named_modules()}
    routers = list(found_routers(model))
    if not routers:
        raise ValueError(f"{type(model).__name__} has no routers")
    numbers = [re.findall(r"\.([0-9]+)(?=\.)", f".{names[router]}.") for router in routers]
    routed = [int(found[0]) for found in numbers if len(found) == 1]
    if len(routed) < len(routers) or routed != sorted(set(routed)):
        raise ValueError(f"{type(model).__name__} has not one router a layer")
    config = model.config.get_text_config()  # type: ignore[operator, union-attr]
    sizes = {_experts(router) for router in routers}
    chosen = next((value for name in CHOSEN if (value := getattr(config, name, 0))), 0)
    if len(sizes) > 1 or not isinstance(chosen, int) or chosen < 1:
        raise ValueError(f"{type(model).__name__} has not as many experts in each layer")
    return RoutingLayout(config.num_hidden_layers, tuple(routed), chosen, sizes.pop())


def _experts(router: nn.Module) -> int:
    (matrix,) = [p for p in router.parameters() if p.dim() == 2 and min(p.shape) > 1]
    return int(matrix.shape[0])
