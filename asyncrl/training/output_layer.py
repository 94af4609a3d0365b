"""The output layer of a model in a variant that computes in float32, whatever the model's type.
Invariant: the same layer with the same parameters under the same names.

In bfloat16 a logit near 20 is a multiple of 1/8, and engine and trainer round differently there:
MiniMax-M1 (arXiv 2506.13585, section 3.2) found most of their mismatch in this one layer. Its
weights stay as they are, tied or not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncrl.training.models import ModelError


class Float32Linear(nn.Linear):
    """`nn.Linear` whose product is of float32 numbers."""

    computes = torch.float32

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
