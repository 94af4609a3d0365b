"""Attention of a packed batch on CUDA, by FlexAttention. Invariant: it is used only where it was
shown to agree with the tables.

In depth-first order a place q has k in its path if k <= q < ends[k]. So the least and the largest
end of a block of keys determine whether all, some or none of a block of queries see it: no mask of
places by places is built.

This has not run on a GPU yet. So `compared` compares it with the tables when a model is tried, in
float32, forwards and backwards; where it fails or differs, the tables are used.
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


def block_mask(ends: Tensor, own: Tensor | None = None) -> BlockMask:
    """The mask of a tree's places: `ends`, int64 [places]; the queries are all of them, or some of
    them, the `own` (int64, ascending)."""
    count, device = len(ends), ends.device
    asked = torch.arange(count, device=device) if own is None else own
    missing = -count % BLOCK
    largest = F.pad(ends, (0, missing), value=0).view(-1, BLOCK).amax(1)
    least = F.pad(ends, (0, missing), value=count).view(-1, BLOCK).amin(1)
    key = torch.arange(len(least), device=device) * BLOCK
    first = asked[::BLOCK]
    last = F.pad(asked, (0, -len(asked) % BLOCK), value=0).view(-1, BLOCK).amax(1) + 1
    before = (key + BLOCK)[None] <= first[:, None]
    every = before & (least[None] >= last[:, None])
    some = (key[None] < last[:, None]) & (largest[None] > first[:, None]) & ~every

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        place = asked[query]
        return (key <= place) & (place < ends[key])

    return BlockMask.from_kv_blocks(
        *_indices(some), *_indices(every), BLOCK, visible, seq_lengths=(len(asked), count)
    )


def _indices(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """For each block of queries, the number of its blocks of keys, and their indexes, ascending."""
    order = blocks.int().argsort(dim=1, descending=True, stable=True)
    return blocks.sum(1).int()[None, None], order.int()[None, None]


class BlockAttention:
    """Attention by the ends of a tree's places, int64 [places], of all of them as queries, or of
    the `own`."""

    def __init__(self, ends: Tensor, device: torch.device, own: Tensor | None = None) -> None:
        self._mask = block_mask(ends.to(device), None if own is None else own.to(device))

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
    """Attention by tables that also computes blocks: `distance` is the largest difference, over
    layers, of outputs and of the gradients of queries, keys and values, in float32. Only the first
    `places` are compared: the others are padding."""

    def __init__(self, tables: TableAttention, blocks: BlockAttention, places: int) -> None:
        self._ways = tables, blocks
        self._places = places
        self.distance = 0.0

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **rest: Any
    ) -> Tensor:
        """As `TableAttention.attend`, without a gradient."""
        results = list[list[Tensor]]()
        for way in self._ways:
            with torch.enable_grad():
                inputs = [of.detach().float().requires_grad_() for of in (query, key, value)]
                output = way.attend(module, *inputs, **rest)
                real = output[:, : self._places].flatten()
                weights = torch.linspace(-1, 1, len(real), device=output.device)
                gradients = torch.autograd.grad((real * weights).sum(), inputs)
            results.append([real.detach(), *gradients])
        for one, other in zip(*results, strict=True):
            size = one.abs().max().clamp(min=1.0)
            self.distance = max(self.distance, float((one - other).abs().max() / size))
        return self._ways[0].attend(module, query, key, value, **rest)
