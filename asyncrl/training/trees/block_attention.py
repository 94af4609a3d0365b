"""Attention of a packed batch on CUDA, by FlexAttention. Invariant: it is taken only where it was
found to be what the tables give.

In depth-first order a place q has k in its path if k <= q < ends[k]. So a block of keys is seen by
all of a block of queries, by some or by none of it according to the least and the largest of its
ends: no mask of places by places is made.

Nobody has run this on a GPU yet. So `compared` sets it beside the tables when a model is tried, in
float32, forwards and backwards; where it fails or differs, the tables are taken.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from asyncrl.training.trees.table_attention import TableAttention

BLOCK = 128
"""Places of a block of queries, and of one of keys."""


def block_mask(ends: Tensor) -> BlockMask:
    """The mask of a tree's places: `ends`, int64 [places]."""
    count, device = len(ends), ends.device
    missing = -count % BLOCK
    largest = F.pad(ends, (0, missing), value=0).view(-1, BLOCK).amax(1)
    least = F.pad(ends, (0, missing), value=count).view(-1, BLOCK).amin(1)
    first = torch.arange(len(least), device=device) * BLOCK
    last = (first + BLOCK).clamp(max=count)
    before = first[None] < first[:, None]
    every = before & (least[None] >= last[:, None])
    some = (before & (largest[None] > first[:, None]) & ~every) | (first[None] == first[:, None])

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    return BlockMask.from_kv_blocks(
        *_indices(some), *_indices(every), BLOCK, visible, seq_lengths=(count, count)
    )


def _indices(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Of each block of queries, how many blocks of keys it has, and which, in ascending order."""
    order = blocks.int().argsort(dim=1, descending=True, stable=True)
    return blocks.sum(1).int()[None, None], order.int()[None, None]


class BlockAttention:
    """Attention by the ends of a tree's places, int64 [places]."""

    def __init__(self, ends: Tensor, device: torch.device) -> None:
        self._mask = block_mask(ends.to(device))

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float | None = None,
        **_: Any,
    ) -> Tensor:
        """As `TableAttention.attend`, for layers without dropout."""
        output = _flex(query.device.type)(
            query,
            key,
            value,
            block_mask=self._mask,
            scale=scaling,
            enable_gqa=key.shape[1] != query.shape[1],
        )
        assert isinstance(output, Tensor)
        return output.transpose(1, 2)


@cache
def _flex(device: str) -> Any:
    """FlexAttention, compiled where there are kernels for it: a CPU has none for its backward."""
    return torch.compile(flex_attention, dynamic=True) if device == "cuda" else flex_attention


class ComparedAttention:
    """Attention by tables that sets blocks beside it: `distance` is the largest, over layers, of
    outputs and of the gradients of queries, keys and values, in float32. Only the first `places`
    are looked at: the others are no tokens."""

    def __init__(self, tables: TableAttention, blocks: BlockAttention, places: int) -> None:
        self._ways = tables, blocks
        self._places = places
        self.distance = 0.0

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **rest: Any
    ) -> Tensor:
        """As `TableAttention.attend`, without a gradient."""
        found = list[list[Tensor]]()
        for way in self._ways:
            with torch.enable_grad():
                given = [of.detach().float().requires_grad_() for of in (query, key, value)]
                output = way.attend(module, *given, **rest)
                real = output[:, : self._places].flatten()
                weights = torch.linspace(-1, 1, len(real), device=output.device)
                gradients = torch.autograd.grad((real * weights).sum(), given)
            found.append([real.detach(), *gradients])
        for one, other in zip(*found, strict=True):
            size = one.abs().max().clamp(min=1.0)
            self.distance = max(self.distance, float((one - other).abs().max() / size))
        return self._ways[0].attend(module, query, key, value, **rest)
