"""Pieces tile each bucket, say the same to both sides, and large tensors are sent from where they
lie."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import drawn
from torch import Tensor

from asyncrl.weightsync.bucket_pieces import ALONE, MOST, packed, pieces
from asyncrl.weightsync.buckets import Plan
from asyncrl.weightsync.checksum import BucketSums, checksum

numbers = st.one_of(
    st.integers(0, 300),
    st.integers(0, 40).map(lambda n: ALONE // 4 + 16 * n),
    st.sampled_from([ALONE // 4 - 1, ALONE // 4 + 1, MOST // 4, MOST // 2 + 16]),
)
"""Numbers of a float32 tensor, about what is sent alone."""


@settings(max_examples=drawn(40))
@given(counts=st.lists(numbers, max_size=6), bucket_bytes=st.integers(2**16, 2**23))
def test_pieces_tile_buckets_and_have_the_bytes_of_a_packed_bucket(
    counts: list[int], bucket_bytes: int
) -> None:
    weights = {
        f"w{i}": torch.arange(count, dtype=torch.float32).add_(i) for i, count in enumerate(counts)
    }
    plan = Plan.of(weights, bucket_bytes)
    buffers = [torch.full((plan.bucket_bytes,), 0xAA, dtype=torch.uint8) for _ in range(2)]
    buckets = [each.clone() for each in plan.pack(weights.items(), buffers[:1])]
    small = [each[:MOST] for each in buffers]
    told, found, at = list(pieces(plan)), list[int](), 0
    for piece, part in packed(plan, weights.items(), small):
        assert piece == told.pop(0) and piece.start == at and 0 < part.numel() <= MOST
        assert piece.bucket_start == piece.bucket * plan.bucket_bytes
        assert piece.end <= piece.bucket_start + buckets[piece.bucket].numel()
        bucket = buckets[piece.bucket]
        assert torch.equal(part, bucket[piece.within : piece.within + part.numel()])
        if piece.within == 0:
            found.append(0)
            sums = BucketSums(bucket.numel())
        sums.add(piece.within, part)
        found[-1], at = sums.checksum, piece.end
    assert not told and at == plan.total_bytes
    assert found == [checksum(bucket) for bucket in buckets]


def copied(weights: dict[str, Tensor]) -> int:
    """Bytes that were copied into buffers."""
    plan = Plan.of(weights, 2**25)
    buffers = [torch.empty(MOST, dtype=torch.uint8) for _ in range(2)]
    own = {buffer.untyped_storage().data_ptr() for buffer in buffers}
    return sum(
        part.numel()
        for _, part in packed(plan, weights.items(), buffers)
        if part.untyped_storage().data_ptr() in own
    )


def test_large_tensors_are_not_copied() -> None:
    large, norm = torch.randn(1024, 1024), torch.randn(1024)
    between = {"norm": norm, "bias": norm[:16]}
    assert copied({"q": large, **between, "k": large[:128]}) == norm.nbytes + 64
    assert copied({"turned": large.t(), "view": large[512:]}) == 0  # made contiguous, one at a time
    odd = torch.randn(2**18 + 1)
    assert copied({"odd": odd}) == Plan.of({"odd": odd}, 2**25).total_bytes  # padding follows
    unaligned = torch.randn(2**20 + 1)[1:]
    assert copied({"unaligned": unaligned}) == unaligned.nbytes
