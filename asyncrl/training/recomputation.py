"""Recomputation of a model's layers in the backward pass, instead of keeping their intermediate
results (activation checkpointing). Invariant: the gradients are the same, to the bit.

What is kept, the input of each layer, may lie in host memory until the layer's turn comes.

A recomputed layer must use the same attention and the same experts as the first time. A setting of
the model selects attention, and it is ours only during a forward pass, so each layer gets the one
of its first pass again. Otherwise the gradient would be of another attention, silently wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from asyncrl.algorithms.routing.routers import same_pass
from asyncrl.training.models import ModelError

_RECOMPUTES = "asyncrl_recomputes"
"""Attribute of a model whose layers are recomputed in the backward pass: `KeptInputs`."""


class KeptInputs(NamedTuple):
    """A way to keep the inputs of layers: `away` gives what is kept of one, `back` the same tensor
    again."""

    away: Callable[[Tensor], Any]
    back: Callable[[Any], Tensor]


def _same(tensor: Tensor) -> Tensor:
    return tensor


AS_IT_IS = KeptInputs(_same, _same)


def _to_host(tensor: Tensor) -> tuple[torch.device, Tensor]:
    kept = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return tensor.device, kept.copy_(tensor)


def _from_host(kept: tuple[torch.device, Tensor]) -> Tensor:
    device, tensor = kept
    return tensor.to(device, non_blocking=tensor.is_pinned(), copy=True)


ON_HOST = KeptInputs(_to_host, _from_host)
"""In host memory, pinned for a GPU."""


def recompute(model: PreTrainedModel, keeping: KeptInputs = AS_IT_IS) -> None:
    """Recompute the model's layers in the backward pass from now on: only the inputs of each layer
    are kept. Dropout must be off. Raises ModelError for a model whose layers transformers does not
    declare."""
    if not any(isinstance(module, GradientCheckpointingLayer) for module in model.modules()):
        raise ModelError(
            f"the model ({type(model).__name__}) has no layers that can be recomputed in the "
            "backward pass: set train.recompute_activations to false"
        )
    setattr(model, _RECOMPUTES, keeping)


@contextmanager
def recomputed(model: PreTrainedModel) -> Iterator[None]:
    """Make forward passes in the block keep only the inputs of layers, if `recompute` was called
    and there are gradients. The backward pass may come after the block."""
    keeping: KeptInputs | None = getattr(model, _RECOMPUTES, None)
    if keeping is None or not torch.is_grad_enabled():
        yield
        return
    config = model.config.get_text_config()  # whose attention is ours during a pass
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for layer in layers:
        # on the layer itself and for this pass only: a copy of the model must not call this one's
        layer.forward = partial(_kept, config, keeping, layer, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _kept(
    config: Any,
    keeping: KeptInputs,
    layer: nn.Module,
    forward: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Output of a layer, keeping only its inputs."""
    attention, routing = config._attn_implementation, same_pass(layer)

    def again(*args: Any, **kwargs: Any) -> Any:
        before = config._attn_implementation
        config._attn_implementation = attention
        try:
            with routing():
                return forward(*args, **kwargs)
        finally:
            config._attn_implementation = before

    of_layer: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False, **kwargs}
    if keeping is AS_IT_IS:
        return checkpoint(again, *args, **of_layer)
    with torch.autograd.graph.saved_tensors_hooks(*keeping):
        return checkpoint(again, *args, **of_layer)
