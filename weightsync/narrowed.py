"""Weights of a smaller type than the trainer computes with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def narrowed(
    tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """The tensors, those of floating point rounded to `dtype` where that is the smaller type; one
    at a time, so that no second model is held.

    >>> weights = [("a", torch.tensor([1.0, 1.001])), ("n", torch.tensor([7]))]
    >>> [(name, tensor.tolist()) for name, tensor in narrowed(weights, torch.bfloat16)]
    [('a', [1.0, 1.0]), ('n', [7])]
    """
    for name, tensor in tensors:
        smaller = tensor.is_floating_point() and dtype.itemsize < tensor.dtype.itemsize
        yield name, tensor.to(dtype) if smaller else tensor
