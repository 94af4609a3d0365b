"""The output layer of a model: a variant that computes in float32, whatever the model's type, and a
check that it alone makes the logits. Invariant: the same layer with the same parameters under the
same names.

In bfloat16 a logit near 20 is a multiple of 1/8, and engine and trainer round differently there:
MiniMax-M1 (arXiv 2506.13585, section 3.2) found most of their mismatch in this one layer. Its
weights stay as they are, tied or not.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncrl.training.models import ModelError


class Float32Linear(nn.Linear):
    """`nn.Linear` whose product is of float32 numbers."""

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.Linear`: [..., in] of any float type to float32 [..., out]."""
        bias = None if self.bias is None else self.bias.float()
        return F.linear(input.float(), self.weight.float(), bias)


def float32_output(model: PreTrainedModel) -> None:
    """Make the output layer of a model compute in float32. It changes its class in place. Raises
    ModelError for a model whose output layer is of another kind."""
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        raise ModelError(
            f"the output layer of the model ({type(model).__name__}) is a {type(layer).__name__} "
            "and not a linear layer, so it cannot compute in float32: set model.output_dtype to "
            "weights"
        )
    layer.__class__ = Float32Linear


def makes_the_logits(model: PreTrainedModel) -> bool:
    """True if the model's logits are the unchanged result of its output layer, without a scale or a
    soft cap. The test uses numbers as of a trained model, because those of a new one are too small
    for a soft cap to show."""
    layer: nn.Module = model.get_output_embeddings()
    made: list[Tensor] = []

    def replace(_: Any, __: Any, output: Tensor) -> Tensor:
        numbers = torch.arange(output.numel(), device=output.device) % 101 - 50
        made.append(numbers.view(output.shape).to(output.dtype))  # exact in every type
        return made[0]

    hook = layer.register_forward_hook(replace)
    try:
        with torch.no_grad():
            ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
            logits: Tensor = model(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    return len(made) == 1 and logits.shape == made[0].shape and torch.equal(logits, made[0])
