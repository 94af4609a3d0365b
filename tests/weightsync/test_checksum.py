"""The checksum: against its own formula in plain integers, on two backends, in pieces, and against
every small damage."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.weightsync.checksum import COLUMNS, BucketSums, checksum


def bucket(words: int, seed: int) -> Tensor:
    return torch.randint(
        0, 256, (8 * words,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def by_hand(data: Tensor) -> int:
    raw = bytes(data.tolist())
    words = [int.from_bytes(raw[i : i + 8], "little") for i in range(0, len(raw), 8)]
    of_rows = [sum(words[i : i + COLUMNS]) for i in range(0, len(words), COLUMNS)]
    of_columns = [sum(words[i::COLUMNS]) for i in range(min(COLUMNS, len(words)))]
    sums = b"".join((each % 2**64).to_bytes(8, "little") for each in of_rows + of_columns)
    return int.from_bytes(hashlib.blake2b(sums, digest_size=8).digest(), "little")


def on_device(sums: BucketSums, start: int, piece: Tensor) -> None:
    """Add as for a tensor that is on a GPU."""
    if piece.numel():
        sums._add_on_device(start // 8, piece.view(torch.int64))


SIZES = [0, 1, 1000, COLUMNS - 1, COLUMNS, COLUMNS + 1, 40 * COLUMNS, 3 * COLUMNS + 77]


@pytest.mark.parametrize("words", SIZES)
@pytest.mark.parametrize("add", [BucketSums.add, on_device])
def test_both_backends_follow_the_formula(
    words: int, add: Callable[[BucketSums, int, Tensor], None]
) -> None:
    data = bucket(words, seed=words)
    sums = BucketSums(data.numel())
    add(sums, 0, data)
    assert sums.checksum == checksum(data) == by_hand(data)


@given(
    cuts=st.lists(st.integers(0, 3 * COLUMNS + 50), max_size=4),
    tail=st.integers(0, 7),
    add=st.sampled_from([BucketSums.add, on_device]),
    turned=st.booleans(),
)
def test_pieces_in_any_order_have_the_sums_of_the_whole(
    cuts: list[int], tail: int, add: Callable[[BucketSums, int, Tensor], None], turned: bool
) -> None:
    data = bucket(3 * COLUMNS + 51, seed=2)
    data[data.numel() - tail :] = 0
    edges = sorted({0, *(8 * cut for cut in cuts), data.numel() - 8})
    sums = BucketSums(data.numel())
    pairs = list(pairwise(edges))
    for start, end in reversed(pairs) if turned else pairs:
        add(sums, start, data[start:end])
    sums.add(edges[-1], data[edges[-1] : data.numel() - tail])
    assert sums.checksum == checksum(data)


@given(words=st.integers(1, 3 * COLUMNS), seed=st.integers(0, 9), data=st.data())
def test_a_flipped_bit_changes_it(words: int, seed: int, data: st.DataObject) -> None:
    good = bucket(words, seed)
    bad = good.clone()
    bad[data.draw(st.integers(0, 8 * words - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert checksum(bad) != checksum(good)


BIG = bucket(4 * COLUMNS + 500, seed=1)


@given(
    a=st.integers(0, 4 * COLUMNS + 499),
    b=st.one_of(st.integers(0, 4 * COLUMNS + 499), st.sampled_from([-COLUMNS, COLUMNS, 1])),
    one=st.integers(-(2**63), 2**63 - 1),
    other=st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, -(2**63), 2**31])),
)
def test_two_different_words_cannot_trade_places(a: int, b: int, one: int, other: int) -> None:
    words = BIG.clone().view(torch.int64)
    b = (a + b) % words.numel()  # often in one column
    if a == b or one == other:
        return
    words[a], words[b] = one, other
    first = checksum(words.view(torch.uint8))
    words[a], words[b] = other, one
    assert checksum(words.view(torch.uint8)) != first


def test_signs_that_trade_places_are_seen() -> None:
    x = torch.ones(4096)
    x[17] = -1.0
    for place in (18, 16, 19):
        y = torch.ones(4096)
        y[place] = -1.0
        assert checksum(x.view(torch.uint8)) != checksum(y.view(torch.uint8))


def test_moved_blocks_are_seen() -> None:
    rows = BIG[: 8 * 4 * COLUMNS].view(4, -1)
    assert checksum(rows.flip(0).contiguous().view(-1)) != checksum(rows.view(-1))
    shifted = torch.cat([BIG[8:], BIG[:8]])
    assert checksum(shifted) != checksum(BIG)
    pairs = torch.tensor([[1, 2], [2, 1], [5, 5]], dtype=torch.int64)  # of equal sums
    assert checksum(pairs.view(-1).view(torch.uint8)) != checksum(
        pairs[[1, 0, 2]].view(-1).view(torch.uint8)
    )


@pytest.mark.parametrize(
    ("bad", "start"),
    [
        (torch.zeros(4), 0),
        (torch.zeros(2, 4, dtype=torch.uint8), 0),
        (torch.zeros(8, dtype=torch.uint8), 4),
    ],
)
def test_what_is_no_piece_is_refused(bad: Tensor, start: int) -> None:
    with pytest.raises(ValueError, match="a piece of a bucket is uint8"):
        BucketSums(64).add(start, bad)
