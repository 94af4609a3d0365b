"""Matrices in fp8 (e4m3) with a scale for each block of 128 by 128 numbers, as DeepSeek-V3 stores
them. Invariant: what was rounded once stays what it is, in float32 and in bfloat16.

The scale of a block is the smallest power of two by which its largest number fits into e4m3, whose
largest is 448. DeepSeek-V3.1 restricts scales so (ue8m0). It makes every rounded number, four bits
times a power of two, exact in bfloat16: so a trainer that computes in bfloat16, an engine that
dequantizes, and one that multiplies scales into its sums have the same weights. The other choice,
`largest / 448`, has up to one bit more of range and none of precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 128
"""Rows and columns of a block; those at the edges may be smaller."""
FP8 = torch.float8_e4m3fn
_LEAST = -126
"""Exponent of the smallest scale, the smallest normal number of float32."""


class Fp8Blocks(NamedTuple):
    """Matrices [..., rows, columns] as `numbers` of type FP8, and `scales`, float32 [..., blocks of
    rows, blocks of columns]."""

    numbers: Tensor
    scales: Tensor


def quantized(weight: Tensor) -> Fp8Blocks:
    """Matrices [..., rows, columns] of any float type, rounded to the nearest number of their
    block's grid, ties to even. A block with infinity, or with what is no number, has no number.

    >>> numbers, scales = quantized(torch.tensor([[3.0, 300.0, 1000.0]]))
    >>> numbers.float().tolist(), scales.tolist()
    ([[0.75, 72.0, 256.0]], [[4.0]])
    """
    *stack, rows, columns = weight.shape
    wide = weight.detach().float()
    padded = F.pad(wide, (0, -columns % BLOCK, 0, -rows % BLOCK))
    down, across = (-(-size // BLOCK) for size in (rows, columns))
    blocks = padded.reshape(*stack, down, BLOCK, across, BLOCK)
    largest = blocks.abs().amax((-3, -1))
    mantissa, exponent = torch.frexp(largest)
    # 448 is 0.875 · 2^9
    exponent = (exponent - 9 + (mantissa > 0.875)).clamp(min=_LEAST)
    scales = torch.ldexp(torch.ones_like(mantissa), exponent)
    scales = torch.where(largest == 0, 1.0, torch.where(largest.isfinite(), scales, torch.nan))
    return Fp8Blocks((wide / _each(scales, rows, columns)).to(FP8), scales)


def dequantized(blocks: Fp8Blocks, dtype: torch.dtype) -> Tensor:
    """The numbers of `blocks` by their scales, in `dtype`."""
    *_, rows, columns = blocks.numbers.shape
    return (blocks.numbers.float() * _each(blocks.scales, rows, columns)).to(dtype)


def rounded(weight: Tensor) -> Tensor:
    """The numbers that `weight` has in fp8 blocks, in its own type.

    >>> rounded(torch.tensor([[3.0, 300.0, 1000.0]])).tolist()
    [[3.0, 288.0, 1024.0]]
    """
    return dequantized(quantized(weight), weight.dtype)


def _each(scales: Tensor, rows: int, columns: int) -> Tensor:
    """The scale of each number."""
    whole = scales.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
    return whole[..., :rows, :columns]
