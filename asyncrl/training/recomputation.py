"""A model's layers computed again in the backward pass, in place of keeping what is between (which
others call activation checkpointing). Invariant: the gradients are the same, to the bit.

A layer that is computed again has to be the one that was computed. Attention is chosen by a setting
of the model that is ours during a forward pass only, so each layer is given that of its first pass
once more. Without it the gradient is that of other attention: wrong, and nothing says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from asyncrl.training.models import ModelError

_RECOMPUTES = "asyncrl_recomputes"
"""Attribute of a model whose layers are computed again in the backward pass."""


def recompute(model: PreTrainedModel) -> None:
    """Have the model's layers computed again in the backward pass from now on: of each layer only
    what it is given is kept. Dropout has to be off. Raises ModelError for a model of which
    transformers does not say what its layers are."""
    if not any(isinstance(module, GradientCheckpointingLayer) for module in model.modules()):
        raise ModelError(
            f"the model ({type(model).__name__}) has no layers that can be computed again in the "
            "backward pass: set train.recompute_activations to false"
        )
    setattr(model, _RECOMPUTES, True)


@contextmanager
def recomputed(model: PreTrainedModel) -> Iterator[None]:
    """Forward passes of the model meanwhile keep what its layers are given, and no more, where
    `recompute` was asked for and there are gradients. The backward pass may come afterwards."""
    if not (getattr(model, _RECOMPUTES, False) and torch.is_grad_enabled()):
        yield
        return
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for layer in layers:
        # on the layer itself and for this pass only: a copy of the model must not call this one's
        layer.forward = partial(_kept, model.config, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _kept(config: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Output of a layer, of which what it is given is kept."""
    attention = config._attn_implementation

    def again(*args: Any, **kwargs: Any) -> Any:
        before = config._attn_implementation
        config._attn_implementation = attention
        try:
            return forward(*args, **kwargs)
        finally:
            config._attn_implementation = before

    return checkpoint(again, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
