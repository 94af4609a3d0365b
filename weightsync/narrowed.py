"""The numbers that engines are sent, where they are coarser than the trainer's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training.adapters import published
from asyncrl.training.fp8_blocks import rounded
from asyncrl.training.models import parameters_for_publication
from asyncrl.training.rounding import linear_weights


@dataclass(frozen=True)
class SentWeights:
    """The numbers that engines are sent: floating-point ones are at most of type `dtype`, and with
    `fp8` the weights of linear layers have only values of fp8 blocks (`asyncrl.training.rounding`),
    still in that type."""

    dtype: torch.dtype
    fp8: bool = False

    def of(self, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of all that a publication of the model sends. Raises ModelError where fp8
        blocks do not fit it."""
        return self.narrowed(published(model), model)

    def weights(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """The weights of a model without adapters, as they are sent. Raises ModelError."""
        return dict(self.narrowed(parameters_for_publication(model), model))

    def narrowed(
        self, tensors: Iterable[tuple[str, Tensor]], model: PreTrainedModel
    ) -> Iterator[tuple[str, Tensor]]:
        """The tensors, with names of `model`'s weights, as they are sent. Raises ModelError."""
        return narrowed(tensors, self.dtype, linear_weights(model) if self.fp8 else frozenset())


def narrowed(
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    in_blocks: frozenset[str] = frozenset(),
) -> Iterator[tuple[str, Tensor]]:
    """The tensors, those of floating point rounded to `dtype` where that is the smaller type, and
    those named `in_blocks` to fp8 blocks; one at a time, so that no second model is held.

    >>> weights = [("a", torch.tensor([1.0, 1.001])), ("n", torch.tensor([7]))]
    >>> [(name, tensor.tolist()) for name, tensor in narrowed(weights, torch.bfloat16)]
    [('a', [1.0, 1.0]), ('n', [7])]
    """
    for name, tensor in tensors:
        smaller = tensor.is_floating_point() and dtype.itemsize < tensor.dtype.itemsize
        exact = rounded(tensor) if name in in_blocks else tensor
        yield name, exact.to(dtype) if smaller else exact
