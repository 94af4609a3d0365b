"""Plans: a model cut into buckets. Invariant: equal plans lay equal bytes at equal places, so two
processes with equal plans need to exchange nothing but the buckets.

A plan lays every tensor, in order, at an aligned offset of one flat address space, and buckets are
cuts of it at multiples of `bucket_bytes`: a tensor may span several, and unpacking is no copy at
all, but views of the flat memory that was received into.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from asyncrl.config.errors import InputError

ALIGN = 64
"""Bytes. Every tensor begins at a multiple of it: a cache line, and more than any dtype needs."""

DTYPES: dict[str, torch.dtype] = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
"""The dtypes that a plan may hold, by the name that each has in one."""


class PlanMismatch(InputError, ValueError):
    """Two processes hold different models, or cut them differently."""


class Spec(msgspec.Struct, frozen=True, array_like=True):
    """One tensor: `dtype` is a key of `DTYPES`."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype} {list(self.shape)})"


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """The tensors of a model in order, and the bytes of a bucket (a multiple of `ALIGN`). Tensors
    whose names begin with `still` never change; empty: all may. Build it with `Plan.of`."""

    specs: tuple[Spec, ...]
    bucket_bytes: int
    still: str = ""

    @staticmethod
    def of(
        tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
        bucket_bytes: int,
        still: str = "",
    ) -> Plan:
        """The plan for these tensors (meta tensors will do) in buckets of at most `bucket_bytes`
        (at least `ALIGN`), of which those whose names begin with `still` never change.

        Tied weights are the caller's business: a tensor under two names is laid out twice. Raises
        ValueError for a name given twice, a dtype not in `DTYPES`, or buckets too small.
        """
        if bucket_bytes < ALIGN:
            raise ValueError(f"buckets of {bucket_bytes} bytes are too small: at least {ALIGN}")
        known = {d: name for name, d in DTYPES.items()}
        specs: dict[str, Spec] = {}
        for name, tensor in tensors.items() if isinstance(tensors, Mapping) else tensors:
            if name in specs:
                raise ValueError(f"tensor {name} is given twice")
            if tensor.dtype not in known:
                raise ValueError(
                    f"tensor {name} is of {tensor.dtype}, which cannot be published: use one "
                    f"of {', '.join(DTYPES)}"
                )
            specs[name] = Spec(name, known[tensor.dtype], tuple(tensor.shape))
        return Plan(tuple(specs.values()), bucket_bytes - bucket_bytes % ALIGN, still)

    @property
    def offsets(self) -> list[int]:
        """The place of each tensor, in bytes from the start; one more entry, the end."""
        offsets = [0]
        for spec in self.specs:
            size = DTYPES[spec.dtype].itemsize
            for n in spec.shape:
                size *= n
            offsets.append(offsets[-1] + (size + ALIGN - 1) // ALIGN * ALIGN)
        return offsets

    @property
    def total_bytes(self) -> int:
        """All of it, padding included: a multiple of `ALIGN`."""
        return self.offsets[-1]

    @property
    def bucket_count(self) -> int:
        return -(-self.total_bytes // self.bucket_bytes)

    def stays(self) -> list[bool]:
        """True for each bucket in which no tensor ever changes."""
        stays, offsets = [bool(self.still)] * self.bucket_count, self.offsets
        for spec, start, end in zip(self.specs, offsets, offsets[1:], strict=False):
            if not spec.name.startswith(self.still):
                first, last = start // self.bucket_bytes, -(-end // self.bucket_bytes)
                stays[first:last] = [False] * (last - first)
        return stays

    @property
    def digest(self) -> str:
        """Equal for equal plans only: 128 bits of BLAKE2b, in hex."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=16).hexdigest()

    def buckets(self, flat: Tensor) -> Iterator[Tensor]:
        """The flat memory, `[total_bytes]` uint8, bucket by bucket; the last may be shorter."""
        for start in range(0, self.total_bytes, self.bucket_bytes):
            yield flat[start : start + self.bucket_bytes]

    def pack(
        self, tensors: Iterable[tuple[str, Tensor]], buffers: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Copy the tensors, which must come in the plan's order, into `buffers` by turns (uint8,
        `[bucket_bytes]` each), and yield each when it is full; the last may be yielded shorter. A
        buffer is written again only when the iterator is advanced `len(buffers)` times.

        Padding is zero. `tensors` is consumed one at a time, so it may gather them lazily. Raises
        PlanMismatch when they are not the plan's.
        """
        offsets = self.offsets
        arriving = iter(tensors)
        turn, filled = 0, 0
        for i, spec in enumerate(self.specs):
            arrived = next(arriving, None)
            if arrived is None:
                raise PlanMismatch(
                    f"the plan has {len(self.specs)} tensors, but only {i} came: {spec} is missing"
                )
            source = _bytes_of(spec, *arrived)
            taken, size = 0, offsets[i + 1] - offsets[i]
            while taken < size:
                piece = min(size - taken, self.bucket_bytes - filled)
                target = buffers[turn][filled : filled + piece]
                real = min(piece, max(0, source.numel() - taken))
                if real:
                    copy_bytes(target[:real], source[taken : taken + real])
                if real < piece:
                    target[real:].zero_()
                taken += piece
                filled += piece
                if filled == self.bucket_bytes:
                    yield buffers[turn]
                    turn, filled = (turn + 1) % len(buffers), 0
        if (extra := next(arriving, None)) is not None:
            raise PlanMismatch(f"tensor {extra[0]} came after the last one of the plan")
        if filled:
            yield buffers[turn][:filled]

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors, by name, as views of `flat` (`[total_bytes]` uint8, contiguous): nothing is
        copied."""
        offsets = self.offsets
        weights = {}
        for i, spec in enumerate(self.specs):
            dtype = DTYPES[spec.dtype]
            n = int(np.prod(spec.shape, dtype=np.int64))
            weights[spec.name] = (
                flat[offsets[i] : offsets[i] + n * dtype.itemsize].view(dtype).view(spec.shape)
            )
        return weights

    def difference(self, other: Plan, mine: str, theirs: str) -> str:
        """The first difference in one sentence, the two sides called `mine` and `theirs`; empty
        when there is none."""
        for i, (a, b) in enumerate(zip(self.specs, other.specs, strict=False)):
            if a != b:
                return f"tensor {i} is {a} in {mine}, but {b} in {theirs}"
        common = min(len(self.specs), len(other.specs))
        if len(self.specs) > common:
            return (
                f"tensor {common} is {self.specs[common]} in {mine}, but {theirs} has no "
                "more tensors"
            )
        if len(other.specs) > common:
            return (
                f"tensor {common} is {other.specs[common]} in {theirs}, but {mine} has no "
                "more tensors"
            )
        if self.bucket_bytes != other.bucket_bytes:
            return (
                f"buckets have {self.bucket_bytes} bytes in {mine}, but {other.bucket_bytes} "
                f"in {theirs}"
            )
        if self.still != other.still:
            return (
                f"tensors named {self.still or 'nothing'!r} never change in {mine}, but "
                f"{other.still or 'nothing'!r} in {theirs}"
            )
        return ""


def _bytes_of(spec: Spec, name: str, tensor: Tensor) -> Tensor:
    if name != spec.name or tuple(tensor.shape) != spec.shape or tensor.dtype != DTYPES[spec.dtype]:
        came = f"{name} ({str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)})"
        raise PlanMismatch(f"the plan has {spec}, but {came} came")
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def copy_bytes(target: Tensor, source: Tensor) -> None:
    """Copy bytes. Between CPU tensors with numpy, which stays in this thread: torch would start
    OpenMP threads beside the decoding ones."""
    if target.device.type == "cpu" and source.device.type == "cpu":
        np.copyto(target.numpy(), source.numpy())
    else:
        target.copy_(source, non_blocking=True)
