"""The checksum of a bucket. Invariant: equal bytes give equal checksums on every device, and a
flipped bit or two different 32-bit words in each other's places always give another one.

The bucket is read as little-endian unsigned 32-bit words `w[r, i]` in rows of 65,536, and

    checksum = sum over r of m[r] * (sum over i of w[r, i] * t[i])   mod 2**64

with `t[i] = 2i + 1` and `m[r] = 1 + r * 2**17` in their low 33 bits, and mixed bits above
(SplitMix64, Steele et al. 2014), so that moved blocks do not cancel. Why that is enough: the
product of two keys is odd, so a changed bit changes the sum; and two different positions have keys
that differ in their low 33 bits, so that two words, which differ by less than 2**32, cannot trade
places unseen. It is no defence against a forger. On the CPU it is numpy's, one pass in one thread;
elsewhere torch's, without a copy to the host.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ROW = 1 << 16
_ROWS = 1 << 16
_LOW = (1 << 33) - 1
_MASK = (1 << 64) - 1


def checksum(bucket: Tensor) -> int:
    """The checksum of a contiguous uint8 tensor `[n]`, n a multiple of 4 and at most 16 GiB: 0 to
    2**64 - 1. Buckets of different length are not to be compared. Raises ValueError for any other
    tensor."""
    if (
        bucket.dtype != torch.uint8
        or bucket.dim() != 1
        or bucket.numel() % 4
        or bucket.numel() > 4 * _ROW * _ROWS
    ):
        raise ValueError(
            f"a bucket is uint8 [n] with n a multiple of 4, at most {4 * _ROW * _ROWS}; this is "
            f"{bucket.dtype} {list(bucket.shape)}"
        )
    return _of_array(bucket.numpy()) if bucket.device.type == "cpu" else of_tensor(bucket)


def of_tensor(bucket: Tensor) -> int:
    """The same in torch operations, on the bucket's own device."""
    words = bucket.view(torch.int32).to(torch.int64).bitwise_and_(0xFFFFFFFF)
    full = words.numel() // _ROW * _ROW
    t, m = _keys_on(bucket.device)
    total = (
        (words[full:] * t[: words.numel() - full]).sum() * m[full // _ROW]
        if full < words.numel()
        else words.new_zeros(())
    )
    if full:
        total = total + ((words[:full].view(-1, _ROW) * t).sum(1) * m[: full // _ROW]).sum()
    return int(total.item()) & _MASK


def _of_array(array: NDArray[np.uint8]) -> int:
    words = array.view(np.uint32)
    t, m = _keys()
    full = len(words) // _ROW * _ROW
    rows = np.einsum("ri,i->r", words[:full].reshape(-1, _ROW), t)
    total = int(np.sum(rows * m[: len(rows)], dtype=np.uint64))
    if full < len(words):
        total += int(np.einsum("i,i->", words[full:], t[: len(words) - full])) * int(
            m[full // _ROW]
        )
    return total & _MASK


@cache
def _keys() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """`t` `[65536]` and `m` `[65536]`."""
    i, r = np.arange(_ROW, dtype=np.uint64), np.arange(_ROWS, dtype=np.uint64)
    low_t, low_m = 2 * i + 1, (1 + (r << np.uint64(17))) & np.uint64(_LOW)
    high = ~np.uint64(_LOW)
    return low_t | (_mixed(i) & high), low_m | (_mixed(r + np.uint64(_ROW)) & high)


@cache
def _keys_on(device: torch.device) -> tuple[Tensor, Tensor]:
    t, m = (torch.from_numpy(k.view(np.int64)).to(device) for k in _keys())
    return t, m


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
