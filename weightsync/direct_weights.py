"""An engine's own weights, written piece by piece while it is paused. Invariant: a cancelled job
writes nothing more, and the checked weights are those that the engine will decode with.

A piece is received into a buffer and copied from there. Straight into the weights would leave them
to a thread that was left behind in a broadcast, and a tensor may be of a wider type than it is sent
in (`publication.dtype`). Checksums are of the bytes of the weights, so that a copy that went wrong
shows, too. A widened number rounds back to the bits that came.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from asyncrl.weightsync.bucket_pieces import Piece
from asyncrl.weightsync.buckets import DTYPES, Plan, PlanMismatch, Spec, copy_bytes
from asyncrl.weightsync.checksum import BucketSums
from asyncrl.weightsync.process_group import Job


class DirectWeights:
    """The tensors of an engine by name, as `plan` lays them out: contiguous, and each of the
    plan's type or a wider one. Raises PlanMismatch for any others."""

    def __init__(self, plan: Plan, tensors: Mapping[str, Tensor]) -> None:
        self.plan = plan
        self._flat = [_flat(spec, tensors.get(spec.name)) for spec in plan.specs]
        self._offsets = plan.offsets
        self._turn = threading.Lock()  # of a thread that was left behind, and the next one

    def write(self, job: Job, piece: Piece, part: Tensor) -> None:
        """Copy the bytes of a piece, uint8, to their place. Raises TransferError where `job` was
        abandoned."""
        doing = f"writing bucket {piece.bucket + 1} of {self.plan.bucket_count}"
        with self._turn, job.step(doing):
            for target, at, dtype in self._pieces(piece.start, piece.end):
                source = part[at : at + target.numel() * dtype.itemsize].view(dtype)
                if target.dtype == dtype:
                    copy_bytes(target.view(torch.uint8), source.view(torch.uint8))
                else:
                    target.copy_(source)

    def add(self, sums: BucketSums, piece: Piece) -> None:
        """Add what stands there now to the sums of its bucket."""
        for own, at, dtype in self._pieces(piece.start, piece.end):
            sums.add(piece.within + at, own.to(dtype).view(torch.uint8))

    def _pieces(self, start: int, end: int) -> Iterator[tuple[Tensor, int, torch.dtype]]:
        """The part of each tensor that lies between two bytes, where it begins after the first, and
        the type that is sent."""
        number = max(0, bisect_right(self._offsets, start) - 1)
        for i in range(number, len(self._flat)):
            offset, flat, dtype = self._offsets[i], self._flat[i], DTYPES[self.plan.specs[i].dtype]
            if offset >= end:
                break
            first = max(start, offset)
            last = min(end, offset + flat.numel() * dtype.itemsize)
            if first < last:
                part = flat[(first - offset) // dtype.itemsize : (last - offset) // dtype.itemsize]
                yield part, first - start, dtype


def _flat(spec: Spec, tensor: Tensor | None) -> Tensor:
    """The engine's tensor of a spec, as one dimension of the same memory."""
    if tensor is None:
        raise PlanMismatch(f"the trainer sends {spec}, and the engine has no such tensor")
    dtype = DTYPES[spec.dtype]
    fits = tuple(tensor.shape) == spec.shape and tensor.is_contiguous()
    if not fits or torch.promote_types(dtype, tensor.dtype) != tensor.dtype:
        held = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        raise PlanMismatch(f"the trainer sends {spec}, and the engine's tensor is {held}")
    return tensor.detach().view(-1)
