"""The weights of a model that low precision rounds: the matrices of its linear layers and experts.
Invariant: trainer, publication and engines round the same ones, because all ask here.

The same are in fp8 in DeepSeek's checkpoints and in servers: embeddings, output layer, norms and
routers are not. A model whose weights are rounded in training (`model.rounding`) carries a mark, as
copies of it do.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from asyncrl.algorithms.routing.routers import found_routers
from asyncrl.training.fp8_blocks import BLOCK, rounded
from asyncrl.training.models import ModelError

_ROUNDED = "asyncrl_rounded"
"""Attribute of a model that is rounded in training: the names of the weights that are."""


def linear_weights(model: PreTrainedModel) -> frozenset[str]:
    """Names of the weights that fp8 rounds. Raises ModelError for a model without any, and for a
    stack of experts with blocks that two matrices of the checkpoint share."""
    names = frozenset(_linear_weights(model))
    if not names:
        raise ModelError(
            f"{type(model).__name__} has no linear layer before its output layer, and only these "
            "are rounded to fp8: set model.rounding to none, and publication.dtype to model"
        )
    return names


def round_in_training(model: PreTrainedModel) -> None:
    """Mark a model: its learner computes with rounded weights, and changes masters
    (`MasterWeights`). Raises ModelError."""
    setattr(model, _ROUNDED, linear_weights(model))


def rounded_in_training(model: nn.Module) -> frozenset[str]:
    """Names of the weights that are rounded in training; none without the mark."""
    names: frozenset[str] = getattr(model, _ROUNDED, frozenset())
    return names


@torch.no_grad()
def round_for_good(model: PreTrainedModel) -> None:
    """Round the weights of a model that does not learn. Raises ModelError."""
    names = linear_weights(model)
    for name, parameter in model.named_parameters():
        if name in names:
            parameter.copy_(rounded(parameter))


def _linear_weights(model: PreTrainedModel) -> Iterator[str]:
    apart = {id(model.get_output_embeddings()), *map(id, found_routers(model))}
    for where, module in model.named_modules():
        if id(module) in apart or isinstance(module, _ConvNd):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            whole = f"{where}.{name}"
            if isinstance(module, nn.Linear | Conv1D):
                # a gate of one output is no matrix, and in float32 or bfloat16 everywhere
                if parameter.dim() == 2 and min(parameter.shape) > 1:
                    yield whole
            elif parameter.dim() == 3 and min(parameter.shape) > 1:
                if any(size % BLOCK for size in parameter.shape[1:]):
                    raise ModelError(
                        f"{whole} stacks experts of {list(parameter.shape[1:])}, and fp8 has "
                        f"blocks of {BLOCK} by {BLOCK}, which would mix their gates and ups: set "
                        "model.rounding to none, and publication.dtype to model"
                    )
                yield whole
