"""Deltas of buckets: exact for any bytes, and never longer than these."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.weightsync.deltas import BLOCK, WHOLE, Delta, DeltaMismatch, delta, empty_body, whole


def memory(units: list[int]) -> Tensor:
    return torch.from_numpy(np.array(units, dtype=np.uint16).view(np.uint8))


def test_the_example_of_the_docstring() -> None:
    rest = [1] * 16
    made = delta(memory([5, 6, 7, 8, *rest]), memory([5, 9, 7, 0, *rest]))
    assert made.head.tolist() == [2]
    assert torch.equal(made.body, memory([1, 3, 9, 0]))


@st.composite
def buckets(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A bucket and what it becomes: most units stay, those at the edges of blocks often change."""
    units = 4 * draw(st.integers(1, 3 * BLOCK // 4))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    before = numbers.integers(0, 1 << 16, units, dtype=np.uint16)
    now = before.copy()
    share = draw(st.sampled_from([0.0, 0.001, 0.03, 0.12, 0.13, 1.0]))
    at = np.flatnonzero(numbers.random(units) < share)
    edges = np.array([0, BLOCK - 1, BLOCK, 2 * BLOCK, units - 1])
    at = np.union1d(at, edges[(edges < units) & (numbers.random(5) < 0.5)])
    now[at] ^= numbers.integers(0, 1 << 16, len(at), dtype=np.uint16)
    return torch.from_numpy(before.view(np.uint8)), torch.from_numpy(now.view(np.uint8))


@given(buckets())
def test_a_delta_gives_exactly_the_bytes_that_it_was_made_for(pair: tuple[Tensor, Tensor]) -> None:
    before, now = pair
    made = delta(before, now)
    assert made.body.nbytes <= now.nbytes
    target = torch.full_like(now, 77)
    body = empty_body(made.head, target)
    assert body.shape == made.body.shape
    body.copy_(made.body)
    Delta(made.head, body).apply(before, target)
    assert torch.equal(target, now)
    changed = int((before.view(torch.int16) != now.view(torch.int16)).sum())
    if made.head[0] == WHOLE:
        words = int((before.view(torch.int64) != now.view(torch.int64)).sum())
        assert made.body is now and (16 * changed >= now.nbytes or 16 * words >= now.nbytes)
    else:
        assert made.body.nbytes == 4 * changed < now.nbytes / 4


def test_a_delta_may_be_applied_where_the_bytes_before_are() -> None:
    before, now = memory(list(range(12))), memory([*range(11), 99])
    delta(before, now).apply(before, before)
    assert torch.equal(before, now)


def test_a_whole_bucket_needs_nothing_before() -> None:
    now = memory([1, 2, 3])
    made = whole(now)
    assert made.head[0] == WHOLE and made.body is now
    assert empty_body(made.head, now) is now


@pytest.mark.parametrize("counts", [[-2], [2], [2**31 - 1]])
def test_a_head_that_no_delta_has_is_refused(counts: list[int]) -> None:
    with pytest.raises(DeltaMismatch, match="of 4 units"):
        empty_body(torch.tensor(counts, dtype=torch.int32), memory([1, 2, 3, 4]))


def test_a_place_outside_of_the_bucket_is_refused() -> None:
    made = Delta(torch.tensor([1], dtype=torch.int32), memory([4, 1]))
    target = memory([1, 2, 3, 4])
    with pytest.raises(DeltaMismatch, match="place 4 in a bucket of 4 units"):
        made.apply(memory([1, 2, 3, 4]), target)
