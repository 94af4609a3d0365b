"""Pieces: what is broadcast of a bucket at a time. Invariant: equal plans have equal pieces, which
tile each bucket, so all processes of a group post the same broadcasts.

A large tensor is sent from where it lies: its part of a bucket begins a piece of its own, and
nothing of it is copied. What lies between large tensors is put together in a buffer. Pieces are so
small that what was copied, received or written is still in a processor's cache when it is read for
its checksum, and that packing, checksum and wire overlap within one bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from asyncrl.weightsync.buckets import ALIGN, LaidOut, Plan

MOST = 4 * 2**20
"""Bytes of a piece, at most."""
ALONE = 2**18
"""Bytes of a tensor in a bucket from which they are pieces of their own: a broadcast more costs
less than a copy of so many."""


class Piece(NamedTuple):
    """Bytes `start` to `end` of all that a plan lays out, in bucket `bucket` (from 0), which begins
    at `bucket_start`."""

    bucket: int
    bucket_start: int
    start: int
    end: int

    @property
    def within(self) -> int:
        """Its place in the bucket."""
        return self.start - self.bucket_start


def pieces(plan: Plan) -> Iterator[Piece]:
    """The pieces of a plan, in order.

    >>> import torch
    >>> plan = Plan.of({"w": torch.empty(300_000), "b": torch.empty(8)}, 2**20)
    >>> [(piece.bucket, piece.start, piece.end) for piece in pieces(plan)]
    [(0, 0, 1048576), (1, 1048576, 1200064)]
    """
    cuts = _cuts(plan)
    total, at = plan.total_bytes, 0
    for bucket in range(plan.bucket_count):
        first = bucket * plan.bucket_bytes
        last = min(first + plan.bucket_bytes, total)
        edges = [first]
        while at < len(cuts) and cuts[at][0] < last:
            start, end = max(cuts[at][0], first), min(cuts[at][1], last)
            if end - start >= ALONE:
                edges += [start, end]
            if cuts[at][1] > last:
                break
            at += 1
        edges.append(last)
        for start, end in pairwise(edges):
            for begin, finish in _even(start, end):
                yield Piece(bucket, first, begin, finish)


def _cuts(plan: Plan) -> list[tuple[int, int]]:
    """The bytes of each large tensor that no padding follows."""
    offsets = plan.offsets
    ends = (start + spec.nbytes for spec, start in zip(plan.specs, offsets, strict=False))
    pairs = zip(offsets, offsets[1:], ends, strict=False)
    return [(start, end) for start, end, real in pairs if end == real and end - start >= ALONE]


def _even(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Parts of `start` to `end` of at most `MOST` bytes, and of nearly equal size."""
    size = end - start
    if not size:
        return
    count = -(-size // MOST)
    each = -(-size // count // ALIGN) * ALIGN
    for begin in range(start, end, each):
        yield begin, min(begin + each, end)


def packed(
    plan: Plan, tensors: Iterable[tuple[str, Tensor]], buffers: Sequence[Tensor]
) -> Iterator[tuple[Piece, Tensor]]:
    """Each piece with its bytes: of the tensors, which must come in the plan's order, where they
    lie if that is one place on the buffers' device, else copied into `buffers` (uint8, of the
    largest piece each) by turns. A buffer is written again only when the iterator is advanced
    `len(buffers)` times.

    `tensors` is consumed one at a time, so it may gather them lazily. Raises PlanMismatch when they
    are not the plan's.
    """
    source, turn = LaidOut(plan, tensors), 0
    for piece in pieces(plan):
        part, copied = source.part(piece.start, piece.end, buffers[turn])
        turn = (turn + copied) % len(buffers)
        yield piece, part
    source.finish()
