"""An engine's own weights, written bucket by bucket while it is paused. Invariant: a cancelled job
writes nothing more, and the checked weights are those that the engine will decode with.

A bucket is received into a buffer and copied from there. Straight into the weights would leave them
to a thread that was left behind in a broadcast, and a tensor may be of a wider type than it is sent
in (`publication.dtype`). Checksums are of bytes read back from the weights, so that a copy that
went wrong shows, too. A widened number rounds back to the bits that came.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from asyncrl.weightsync.buckets import DTYPES, Plan, PlanMismatch, Spec, copy_bytes
from asyncrl.weightsync.process_group import Job


class DirectWeights:
    """The tensors of an engine by name, as `plan` lays them out: contiguous, and each of the
    plan's type or a wider one. Raises PlanMismatch for any others."""

    def __init__(self, plan: Plan, tensors: Mapping[str, Tensor]) -> None:
        self.plan = plan
        self._flat = [_flat(spec, tensors.get(spec.name)) for spec in plan.specs]
        self._offsets = plan.offsets
        self._turn = threading.Lock()  # of a thread that was left behind, and the next one

    def write(self, job: Job, number: int, bucket: Tensor) -> None:
        """Copy bucket `number` (from 0), uint8, to its place. Raises TransferError where `job` was
        abandoned."""
        with self._turn, job.step(f"writing bucket {number + 1} of {self.plan.bucket_count}"):
            for target, piece in self._pieces(number, bucket):
                if target.dtype == piece.dtype:
                    copy_bytes(target.view(torch.uint8), piece.view(torch.uint8))
                else:
                    target.copy_(piece)

    def read(self, number: int, bucket: Tensor) -> None:
        """Copy what stands there now back into `bucket`, with zeros between tensors."""
        bucket.zero_()
        for source, piece in self._pieces(number, bucket):
            if source.dtype == piece.dtype:
                copy_bytes(piece.view(torch.uint8), source.view(torch.uint8))
            else:
                piece.copy_(source)

    def _pieces(self, number: int, bucket: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The part of each tensor that lies in a bucket, and its place there."""
        start = number * self.plan.bucket_bytes
        end = start + bucket.numel()
        for spec, flat, offset in zip(self.plan.specs, self._flat, self._offsets, strict=False):
            dtype = DTYPES[spec.dtype]
            first = max(start, offset)
            last = min(end, offset + flat.numel() * dtype.itemsize)
            if first < last:
                part = flat[(first - offset) // dtype.itemsize : (last - offset) // dtype.itemsize]
                yield part, bucket[first - start : last - start].view(dtype)


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
