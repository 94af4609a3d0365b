"""Products of experts' weights on tensors that have shapes and no numbers. torch takes their shapes
for bfloat16 alone (2.13), though its kernels compute other types, too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode


class ShapesOfExperts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives grouped products of fake tensors in the block their shapes, whatever their type."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch.ops.aten._grouped_mm.default and isinstance(args[0], FakeTensor):
            return args[0].new_empty(product_shape(args[0], args[1], *args[2:3], **kwargs))
        return function(*args, **kwargs)


def product_shape(
    left: Tensor, right: Tensor, offs: Tensor | None = None, **_: object
) -> tuple[int, ...]:
    """The shape of a grouped product: of rows in groups with a matrix each, of a matrix each with
    columns in groups, of columns with rows (whose result is a matrix for each group), or of as many
    matrices.

    >>> one = torch.empty
    >>> product_shape(one(7, 3), one(2, 3, 5)), product_shape(one(2, 3, 5), one(5, 7))
    ((7, 5), (3, 7))
    >>> product_shape(one(3, 7), one(7, 5), one(2)), product_shape(one(2, 3, 5), one(2, 5, 4))
    ((2, 3, 5), (2, 3, 4))
    """
    rows, columns = left.shape[-2], right.shape[-1]
    if left.dim() == 2 and right.dim() == 2:
        assert offs is not None
        return len(offs), rows, columns
    if left.dim() == 3 and right.dim() == 3:
        return left.shape[0], rows, columns
    return rows, columns
