"""Products of experts' weights, and places that a mask chooses, on tensors that have shapes and no
numbers. torch takes the shapes of these products for bfloat16 alone (2.13), though its kernels
compute other types, too; and it asks no mask how many places it has, though this one has numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

_BY_PLACES = (
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._index_put_impl_.default,
)
"""Functions of a tensor and of places in it."""


class ShapesOfExperts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives grouped products of fake tensors in the block, and their parts by a mask that has
    numbers, their shapes."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch.ops.aten._grouped_mm.default and isinstance(args[0], FakeTensor):
            return args[0].new_empty(product_shape(args[0], args[1], *args[2:3], **kwargs))
        if function in _BY_PLACES and isinstance(args[0], FakeTensor):
            args = (args[0], list(_numbered(args[1])), *args[2:])
        return function(*args, **kwargs)


def _numbered(places: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
    """The same places, those of masks as their numbers."""
    for one in places:
        if one is None or isinstance(one, FakeTensor) or one.dtype != torch.bool:
            yield one
        else:
            yield from one.nonzero(as_tuple=True)


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
