"""A bucket as its difference from the bucket before. Invariant: applied to the bytes that it was
made from, a delta gives exactly the bytes that it was made for; it is never longer than they are.

Bytes are compared in units of 16 bits: a bfloat16 weight is one, a float32 weight two. A delta is a
head, which says how many units of each block of 65,536 changed, and a body: the places of these
units in their blocks, then what stands there now.

    before  [5, 6, 7, 8, …]  → head [2], body [1, 3 | 9, 0]
    now     [5, 9, 7, 0, …]

So a changed unit costs four bytes. Where an eighth of the units changed, or more, finding and
placing them takes longer than a slow wire saves: the head's first count is `WHOLE`, and the body is
the bucket. Fewer bytes for weights that hardly change are known from
others (SkyRL #1903, TRL PR 5417); a step of AdamW at 1e-6 changes a few hundredths of bfloat16
weights, and nearly all of float32 ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.weightsync.buckets import copy_bytes

UNIT = 2
"""Bytes compared at a time."""
WORTH = 8
"""A delta changes fewer than one unit of so many."""
BLOCK = 1 << 16
"""Units whose places fit 16 bits."""
WHOLE = -1
"""The first count of a head whose body is the bucket itself."""


class DeltaMismatch(ValueError):
    """Raised for a delta that does not fit its bucket."""


class Delta(NamedTuple):
    """`head`: int32, one count a block. `body`: uint8."""

    head: Tensor
    body: Tensor

    def apply(self, before: Tensor, bucket: Tensor) -> None:
        """Make `bucket` of `before`, which may be the bucket itself. Raises DeltaMismatch for a
        place outside of it."""
        counts = self.head.numpy()
        if counts[0] == WHOLE:
            if self.body is not bucket:
                copy_bytes(bucket, self.body)
            return
        target = _units(bucket)
        if before is not bucket:
            copy_bytes(bucket, before)
        places, units = np.split(_units(self.body), 2)
        positions = np.repeat(np.arange(len(counts)) * BLOCK, counts) + places
        if len(positions) and positions.max() >= len(target):
            raise DeltaMismatch(
                f"a delta has place {positions.max()} in a bucket of {len(target)} units"
            )
        target[positions] = units


def delta(before: Tensor, now: Tensor) -> Delta:
    """The delta of a bucket. `before` and `now` are contiguous uint8 tensors `[n]` on the CPU, n a
    multiple of 8."""
    old, new = _units(before), _units(now)
    # most units are equal, and four are compared at once
    words = np.flatnonzero(old.view(np.uint64) != new.view(np.uint64))
    if 2 * len(words) >= len(new) // 4:  # of units that change by chance this is a seventh
        return whole(now)
    near = (words[:, None] * 4 + np.arange(4)).ravel()
    changed = near[old[near] != new[near]]
    if WORTH * len(changed) >= len(new):
        return whole(now)
    head = empty_head(now.numel())
    head.copy_(torch.from_numpy(np.bincount(changed // BLOCK, minlength=len(head))))
    places = (changed % BLOCK).astype(np.uint16)
    return Delta(head, torch.from_numpy(np.concatenate((places, new[changed])).view(np.uint8)))


def whole(now: Tensor) -> Delta:
    """A delta that holds for any bytes before: its body is the bucket, and no copy."""
    head = empty_head(now.numel()).zero_()
    head[0] = WHOLE
    return Delta(head, now)


def empty_head(size: int) -> Tensor:
    """Memory for the head of a bucket of `size` bytes."""
    return torch.empty(-(-size // (UNIT * BLOCK)), dtype=torch.int32)


def empty_body(head: Tensor, bucket: Tensor) -> Tensor:
    """Memory for the body that this head announces; for a whole bucket it is `bucket`. Raises
    DeltaMismatch for a head that no delta of a bucket of this size has."""
    counts = head.numpy()
    if counts[0] == WHOLE:
        return bucket
    changed, units = int(counts.sum(dtype=np.int64)), bucket.numel() // UNIT
    if counts.min() < 0 or WORTH * changed >= units:
        raise DeltaMismatch(f"a delta changes {changed} of {units} units, which no delta does")
    return torch.empty(2 * UNIT * changed, dtype=torch.uint8)


def _units(memory: Tensor) -> NDArray[np.uint16]:
    return memory.numpy().view(np.uint16)
