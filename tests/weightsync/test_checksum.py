"""The checksum: against its own formula in plain integers, on two backends, and against every small
damage."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.weightsync.checksum import _keys, checksum, of_tensor

ROW = 65_536


def bucket(words: int, seed: int) -> Tensor:
    return torch.randint(
        0, 256, (4 * words,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def by_hand(data: Tensor) -> int:
    raw = bytes(data.tolist())
    t, m = _keys()
    words = [int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4)]
    return sum(w * int(t[i % ROW]) * int(m[i // ROW]) for i, w in enumerate(words)) % 2**64


@pytest.mark.parametrize("words", [0, 1, 16, 1000, ROW - 1, ROW, ROW + 1, 2 * ROW, 3 * ROW + 77])
def test_both_backends_follow_the_formula(words: int) -> None:
    data = bucket(words, seed=words)
    assert checksum(data) == of_tensor(data) == by_hand(data)


def test_the_keys_are_what_the_proof_needs() -> None:
    t, m = _keys()
    assert t[0] >> 33 == 0xE220A8397B1DCDAF >> 33  # SplitMix64's published first output from seed 0
    i, r = np.arange(ROW, dtype=np.uint64), np.arange(ROW, dtype=np.uint64)
    assert np.array_equal(t % 2**33, 2 * i + 1)
    assert np.array_equal(m % 2**33, 1 + r * 2**17)
    for rows in (m[:3], m[-3:]):
        low = (t[None, :] * rows[:, None]) % 2**33
        assert len(set(low.ravel().tolist())) == low.size


@given(words=st.integers(1, 3000), seed=st.integers(0, 9), data=st.data())
def test_a_flipped_bit_changes_it(words: int, seed: int, data: st.DataObject) -> None:
    good = bucket(words, seed)
    bad = good.clone()
    bad[data.draw(st.integers(0, 4 * words - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert checksum(bad) != checksum(good)


BIG = bucket(2 * ROW + 500, seed=1)
BIG_SUM = checksum(BIG)


@given(
    a=st.integers(0, 2 * ROW + 499),
    b=st.integers(0, 2 * ROW + 499),
    one=st.integers(0, 2**32 - 1),
    other=st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 2**31])),
)
def test_two_different_words_cannot_trade_places(a: int, b: int, one: int, other: int) -> None:
    if a == b or one == other:
        return
    words = BIG.clone().view(torch.int32)
    signed = [w - 2**32 if w >= 2**31 else w for w in (one, other)]
    words[a], words[b] = signed[0], signed[1]
    first = checksum(words.view(torch.uint8))
    words[a], words[b] = signed[1], signed[0]
    assert checksum(words.view(torch.uint8)) != first


def test_signs_that_trade_places_are_seen() -> None:
    x = torch.ones(4096)
    x[17] = -1.0
    y = torch.ones(4096)
    y[18] = -1.0
    assert checksum(x.view(torch.uint8)) != checksum(y.view(torch.uint8))


def test_moved_blocks_are_seen() -> None:
    rows = BIG[: 4 * 2 * ROW].view(2, -1)
    assert checksum(rows.flip(0).contiguous().view(-1)) != checksum(BIG[: 4 * 2 * ROW])
    pairs = torch.tensor([[1, 2], [2, 1], [5, 5]], dtype=torch.int32)  # of equal sums
    assert checksum(pairs.view(-1).view(torch.uint8)) != checksum(
        pairs[[1, 0, 2]].view(-1).view(torch.uint8)
    )


@pytest.mark.parametrize(
    "bad", [torch.zeros(4), torch.zeros(3, dtype=torch.uint8), torch.zeros(2, 4, dtype=torch.uint8)]
)
def test_what_is_no_bucket_is_refused(bad: Tensor) -> None:
    with pytest.raises(ValueError, match="a bucket is uint8"):
        checksum(bad)
