"""Plans: a model cut into buckets. Invariant: equal plans lay equal bytes at equal places, so two
processes with equal plans need to exchange nothing but the buckets.

A plan lays every tensor, in order, at an aligned offset of one flat address space, and buckets are
cuts of it at multiples of `bucket_bytes`: a tensor may span several, and unpacking is no copy at
all, but views of the flat memory that was received into.
"""

from __future__ import annotations

import hashlib
import math
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

    @property
    def nbytes(self) -> int:
        return DTYPES[self.dtype].itemsize * math.prod(self.shape)


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
            offsets.append(offsets[-1] + (spec.nbytes + ALIGN - 1) // ALIGN * ALIGN)
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
        source, total = LaidOut(self, tensors), self.total_bytes
        for number, start in enumerate(range(0, total, self.bucket_bytes)):
            end = min(start + self.bucket_bytes, total)
            target = buffers[number % len(buffers)][: end - start]
            source.copy(start, end, target)
            yield target
        source.finish()

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


class LaidOut:
    """Tensors as they come, in the order of a plan and laid out as it says; one is held at a time.
    Raises PlanMismatch when they are not the plan's."""

    def __init__(self, plan: Plan, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._plan, self._offsets = plan, plan.offsets
        self._arriving = iter(tensors)
        self._count = 0
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def between(self, start: int, end: int) -> Iterator[tuple[int, Tensor]]:
        """The bytes of tensors from `start`, not before the last call's end, to `end`, and where
        each part begins; what is left out is padding."""
        while start < end:
            while self._offsets[self._count] <= start:
                self._take()
            first, last = self._offsets[self._count - 1], min(end, self._offsets[self._count])
            part = self._bytes[start - first : last - first]
            if part.numel():
                yield start, part
            start = last

    def copy(self, start: int, end: int, target: Tensor) -> None:
        """Copy the bytes from `start` to `end` into `target`, with zeros for padding."""
        _copy(self.between(start, end), start, target)

    def part(self, start: int, end: int, buffer: Tensor) -> tuple[Tensor, bool]:
        """The same bytes where they lie, if that is one place on the buffer's device; else copied
        into `buffer`, and True."""
        parts = list(self.between(start, end))
        if len(parts) == 1:
            ((_, only),) = parts
            if only.numel() == end - start and only.device == buffer.device and _as_words(only):
                return only, False
        target = buffer[: end - start]
        _copy(parts, start, target)
        return target, True

    def finish(self) -> None:
        """Take the empty tensors that are left. Raises PlanMismatch where there are others."""
        while self._count < len(self._plan.specs):
            self._take()
        if (extra := next(self._arriving, None)) is not None:
            raise PlanMismatch(f"tensor {extra[0]} came after the last one of the plan")

    def _take(self) -> None:
        specs = self._plan.specs
        spec, arrived = specs[self._count], next(self._arriving, None)
        if arrived is None:
            raise PlanMismatch(
                f"the plan has {len(specs)} tensors, but only {self._count} came: {spec} is missing"
            )
        self._bytes = _bytes_of(spec, *arrived)
        self._count += 1


def _as_words(part: Tensor) -> bool:
    """True if it can be viewed as 64-bit words."""
    return part.storage_offset() % 8 == 0


def _copy(parts: Iterable[tuple[int, Tensor]], start: int, target: Tensor) -> None:
    filled = 0
    for where, part in parts:
        target[filled : where - start].zero_()
        filled = where - start + part.numel()
        copy_bytes(target[where - start : filled], part)
    target[filled:].zero_()


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
