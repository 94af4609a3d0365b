"""Attention by blocks of a tree's places is that of its paths. FlexAttention's kernels need a GPU:
here its mask, its blocks and its forward pass are seen, and the comparison that admits them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import drawn
from torch import Tensor, nn
from training_world import build

from asyncrl.training.forward import TreeAttention, attention_of
from asyncrl.training.packing import PackedBatch, own_part, pack
from asyncrl.training.trees import block_attention
from asyncrl.training.trees.block_attention import BlockAttention, block_mask
from asyncrl.training.trees.table_attention import TableAttention
from asyncrl.training.trial import try_blocks, try_passes


def packed_tree(seed: int, cuts: Sequence[int]) -> PackedBatch:
    """One batch of sequences of 60 tokens, each of which leaves the one before at a cut."""
    random = np.random.default_rng(seed)
    rows = [random.integers(0, 23, 60)]
    for cut in cuts:
        rows.append(np.concatenate([rows[-1][:cut], random.integers(0, 23, 60 - cut)]))
    ids = np.concatenate(rows).astype(np.int32)
    (packed,) = pack(ids, [1] * len(rows), [59] * len(rows), shared=True)
    return packed


def dense(packed: PackedBatch) -> Tensor:
    """True where a place sees another, from the paths; what fills up a size sees itself."""
    seen = torch.eye(len(packed.ids)) > 0
    for path in packed.tree.paths():
        for column, place in enumerate(path.tolist()):
            seen[place, torch.from_numpy(path[: column + 1])] = True
    return seen


many_cuts = st.lists(st.integers(0, 59), min_size=0, max_size=25)


@settings(max_examples=drawn(30), deadline=None)
@given(st.integers(0, 100), many_cuts, st.integers(1, 3))
def test_the_mask_and_its_blocks_are_those_of_the_paths(
    seed: int, cuts: list[int], ranks: int
) -> None:
    """Of all places as queries, and of those of a rank."""
    packed = packed_tree(seed, cuts)
    own = None
    if ranks > 1:
        packed, _ = own_part(whole := packed, seed % ranks, ranks)
        assert packed.divided is not None
        own = packed.divided.own
        filled = torch.eye(len(packed.ends)) > 0
        filled[: len(whole.ids), : len(whole.ids)] = dense(whole)
        expected = filled[own]
    else:
        expected = dense(packed)
    mask = block_mask(packed.ends, own)
    query, key = (torch.arange(size) for size in expected.shape)
    zero = torch.tensor(0)
    assert torch.equal(mask.mask_mod(zero, zero, query[:, None], key[None]), expected)
    fill = (0, -len(key) % block_attention.BLOCK, 0, -len(query) % block_attention.BLOCK)
    tiles = F.pad(expected, fill).unfold(0, 128, 128).unfold(1, 128, 128)
    real = F.pad(torch.ones_like(expected), fill)
    holes = (real.unfold(0, 128, 128).unfold(1, 128, 128) & ~tiles).flatten(2).any(2)
    some = tiles.flatten(2).any(2)
    for number in range(len(some)):
        partial = mask.kv_indices[0, 0, number, : mask.kv_num_blocks[0, 0, number]].tolist()
        full = mask.full_kv_indices[0, 0, number, : mask.full_kv_num_blocks[0, 0, number]].tolist()
        assert not set(partial) & set(full)
        needed = set(torch.nonzero(some[number]).flatten().tolist())
        # queries of a rank leave gaps, in which may be what only others see
        assert {*partial, *full} == needed if own is None else {*partial, *full} >= needed
        assert not holes[number, full].any()
        # what is causal within itself is never taken as seen by all
        assert set(partial) >= set(torch.nonzero(some[number] & holes[number]).flatten().tolist())


def outputs(way: TreeAttention, packed: PackedBatch) -> Tensor:
    """Attention of random queries, keys and values, with half as many of the latter's heads."""
    random = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, len(packed.ids), 16, generator=random) for heads in (4, 2, 2)
    )
    layer = nn.Module()
    layer.num_key_value_groups = 2
    with torch.no_grad():
        found = way.attend(layer, query, key, value, scaling=0.3)
    return found[:, : len(packed.tree.ids)]


def test_its_forward_pass_is_that_of_the_tables() -> None:
    packed = packed_tree(0, [10, 50, 3, 59, 20, 0, 30, 44, 2])
    assert len(packed.tree.ids) > 2 * block_attention.BLOCK
    cpu = torch.device("cpu")
    tables = TableAttention(packed.tables, packed.unpack_index, cpu)
    distance = outputs(tables, packed) - outputs(BlockAttention(packed.ends, cpu), packed)
    assert float(distance.abs().max()) < 1e-5


def plain(query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, **rest: Any) -> Tensor:
    """FlexAttention as it is documented, by a dense mask: it has a backward on a CPU."""
    place = torch.arange(query.shape[2])
    zero = torch.tensor(0)
    seen = block_mask.mask_mod(zero, zero, place[:, None], place[None])
    return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, **rest)


def test_blocks_are_taken_where_they_agree_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, packed = build("qwen3").eval(), packed_tree(0, [5])
    assert try_passes(model, 64).attention == "", "no GPU, no question"
    assert try_blocks(model, 64).startswith("attention by tables, as blocks fail (NotImplemented")
    monkeypatch.setattr(block_attention, "_flex", lambda _: lambda *a, **k: 1.01 * plain(*a, **k))
    assert "tables, as blocks are 0.0" in try_blocks(model, 64)
    assert isinstance(attention_of(model, packed), TableAttention)
    monkeypatch.setattr(block_attention, "_flex", lambda _: plain)
    assert try_blocks(model, 64).startswith("attention by blocks, which are ")
    assert isinstance(attention_of(model, packed), BlockAttention)
