"""Plans, packing and unpacking: every dtype and shape comes out as it went in, whatever the bucket
size."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import drawn
from torch import Tensor

from asyncrl.weightsync.buckets import ALIGN, DTYPES, Plan, PlanMismatch


def through(plan: Plan, tensors: dict[str, Tensor], buffers: int = 2) -> dict[str, Tensor]:
    """Pack and unpack, as the wire does: every bucket is copied away before its buffer is used
    again."""
    store = [torch.full((plan.bucket_bytes,), 0xAA, dtype=torch.uint8) for _ in range(buffers)]
    flat = torch.cat(
        [bucket.clone() for bucket in plan.pack(tensors.items(), store)]
        or [torch.empty(0, dtype=torch.uint8)]
    )
    assert flat.numel() == plan.total_bytes
    return plan.unpack(flat)


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bytes(_raw(a)) == bytes(_raw(b))


def _raw(x: Tensor) -> list[int]:
    return list(x.contiguous().view(-1).view(torch.uint8).tolist())


def noise(dtype: str, shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == "bool":
        return torch.randint(0, 2, shape, generator=generator).bool()
    n = math.prod(shape) * DTYPES[dtype].itemsize
    return (
        torch.randint(0, 256, (n,), dtype=torch.uint8, generator=generator)
        .view(DTYPES[dtype])
        .view(shape)
    )


shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@settings(max_examples=drawn(60))
@given(
    kinds=st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=8),
    bucket_bytes=st.integers(ALIGN, 700),
    buffers=st.integers(1, 3),
)
def test_every_tensor_comes_out_as_it_went_in(
    kinds: list[tuple[str, tuple[int, ...]]], bucket_bytes: int, buffers: int
) -> None:
    tensors = {f"t{i}": noise(dtype, shape, i) for i, (dtype, shape) in enumerate(kinds)}
    plan = Plan.of(tensors, bucket_bytes)
    out = through(plan, tensors, buffers)
    assert list(out) == list(tensors)
    assert all(same(out[name], tensors[name]) for name in tensors)
    assert plan.bucket_count == math.ceil(plan.total_bytes / plan.bucket_bytes)
    assert all(offset % ALIGN == 0 for offset in plan.offsets)


def test_a_tensor_larger_than_a_bucket_spans_several() -> None:
    tensors = {"small": torch.randn(3), "large": torch.randn(1000), "last": torch.randn(5)}
    plan = Plan.of(tensors, 256)
    assert plan.bucket_count == 17
    assert all(torch.equal(a, tensors[name]) for name, a in through(plan, tensors).items())


def test_tensors_follow_one_another_as_closely_as_their_alignment_allows() -> None:
    sizes = {"full": ALIGN, "one more": ALIGN + 1, "empty": 0, "small": 1, "last": 2 * ALIGN}
    plan = Plan.of(
        {n: torch.zeros(size, dtype=torch.uint8) for n, size in sizes.items()}.items(), 300
    )
    assert plan.offsets == [ALIGN * place for place in (0, 1, 3, 3, 4, 6)]


def test_tensors_that_are_not_contiguous() -> None:
    base = torch.randn(20, 30)
    tensors = {
        "transposed": base.t(),
        "strided": base[::2, 1::3],
        "expanded": base[:1].expand(4, 30),
        "grad": base.clone().requires_grad_(),
    }
    out = through(Plan.of(tensors, 512), tensors)
    assert all(torch.equal(out[name], tensors[name]) for name in tensors)


def test_padding_is_zero_whatever_was_in_the_buffers() -> None:
    tensors = {"a": torch.ones(1, dtype=torch.uint8), "b": torch.ones(1, dtype=torch.uint8)}
    plan = Plan.of(tensors, ALIGN)
    for filling in (0, 255):
        buffers = [torch.full((ALIGN,), filling, dtype=torch.uint8) for _ in range(2)]
        assert [int(b.sum()) for b in plan.pack(tensors.items(), buffers)] == [1, 1]


def test_unpacking_copies_nothing() -> None:
    plan = Plan.of({"a": torch.empty(4), "b": torch.empty(4)}, 1024)
    flat = torch.zeros(plan.total_bytes, dtype=torch.uint8)
    weights = plan.unpack(flat)
    weights["b"].fill_(2.0)
    assert torch.equal(flat[ALIGN : ALIGN + 16].view(torch.float32), torch.full((4,), 2.0))


def test_a_buffer_is_left_alone_until_its_turn_comes_again() -> None:
    tensors = {"x": torch.arange(64, dtype=torch.float32)}
    plan = Plan.of(tensors, 64)
    packing = plan.pack(tensors.items(), [torch.empty(64, dtype=torch.uint8) for _ in range(2)])
    first = next(packing)
    copy = first.clone()
    next(packing)
    assert torch.equal(first, copy)
    next(packing)
    assert not torch.equal(first, copy)


def test_tensors_are_taken_one_at_a_time() -> None:
    taken: list[str] = []

    def gather() -> object:
        for name in ("a", "b", "c"):
            taken.append(name)
            yield name, torch.zeros(16)

    plan = Plan.of({name: torch.empty(16, device="meta") for name in ("a", "b", "c")}, 64)
    packing = plan.pack(gather(), [torch.empty(64, dtype=torch.uint8)])  # type: ignore[arg-type]
    assert taken == []
    next(packing)
    assert taken == ["a"]


A = {"w": torch.empty(2, 3), "b": torch.empty(3)}


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (A, ""),
        (
            {"w": torch.empty(3, 2), "b": torch.empty(3)},
            "tensor 0 is w (float32 [2, 3]) in this, but w (float32 [3, 2]) in that",
        ),
        (
            {"w": torch.empty(2, 3), "c": torch.empty(3)},
            "tensor 1 is b (float32 [3]) in this, but c (float32 [3]) in that",
        ),
        (
            {"w": torch.empty(2, 3), "b": torch.empty(3).half()},
            "tensor 1 is b (float32 [3]) in this, but b (float16 [3]) in that",
        ),
        (
            {"w": torch.empty(2, 3)},
            "tensor 1 is b (float32 [3]) in this, but that has no more tensors",
        ),
        (
            {**A, "x": torch.empty(1)},
            "tensor 2 is x (float32 [1]) in that, but this has no more tensors",
        ),
    ],
)
def test_the_first_difference_is_named(other: dict[str, Tensor], sentence: str) -> None:
    one, two = Plan.of(A, 256), Plan.of(other, 256)
    assert one.difference(two, "this", "that") == sentence
    assert (one.digest == two.digest) == (sentence == "")


def test_other_buckets_are_a_difference() -> None:
    assert (
        Plan.of(A, 256).difference(Plan.of(A, 512), "this", "that")
        == "buckets have 256 bytes in this, but 512 in that"
    )
    assert Plan.of(A, 256).digest != Plan.of(A, 512).digest


def test_tensors_that_are_not_the_plans_are_refused() -> None:
    plan = Plan.of(A, 64)
    for tensors, sentence in [
        ({"w": torch.empty(2, 3)}, "only 1 came: b"),
        ({**A, "x": torch.empty(1)}, "x came after the last"),
        ({"b": torch.empty(3), "w": torch.empty(2, 3)}, "the plan has w .* but b .* came"),
        ({"w": torch.empty(2, 3).double(), "b": torch.empty(3)}, "but w .float64 .2, 3.. came"),
    ]:
        with pytest.raises(PlanMismatch, match=sentence):
            list(plan.pack(tensors.items(), [torch.empty(64, dtype=torch.uint8)]))


def test_what_no_plan_can_hold() -> None:
    with pytest.raises(ValueError, match="given twice"):
        Plan.of([("a", torch.empty(1)), ("a", torch.empty(1))], 64)
    with pytest.raises(ValueError, match="complex64, which cannot be published"):
        Plan.of({"a": torch.empty(1, dtype=torch.complex64)}, 64)
    with pytest.raises(ValueError, match="too small"):
        Plan.of({}, 63)
