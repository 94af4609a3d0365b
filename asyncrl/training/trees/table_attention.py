"""Attention of a packed batch, row by row: the reference, on every device, exact by autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from asyncrl.training.trees.attention_tables import AttentionTable


class TableAttention:
    """Attention by the tables of a tree. `unpack_index`, int64 [places]: the index of each place
    among their queries."""

    def __init__(
        self, tables: Sequence[AttentionTable], unpack_index: Tensor, device: torch.device
    ) -> None:
        self._tables = [table.to(device) for table in tables]
        self._masks = [table.mask() for table in self._tables]
        self._unpack_index = unpack_index.to(device)

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **rest: Any
    ) -> Tensor:
        """Attention of a layer: `query`, `key`, `value` are [1, heads, places, size]; gives [1,
        places, heads, size]. `rest` are the layer's further arguments for torch's own attention."""
        queries, keys, values = (of[0].transpose(0, 1).flatten(1) for of in (query, key, value))
        outputs = []
        for number, (table, mask) in enumerate(zip(self._tables, self._masks, strict=True)):
            rows = [
                places.index_select(0, chosen.flatten())
                .view(*chosen.shape, -1, of.shape[-1])
                .transpose(1, 2)
                for places, chosen, of in (
                    (queries, table.queries, query),
                    (keys, table.keys, key),
                    (values, table.keys, value),
                )
            ]
            if mask is not None and mask.dtype != query.dtype:
                # once for all layers
                mask = self._masks[number] = mask.to(query.dtype)
            output, _ = sdpa_attention_forward(module, rows[0], rows[1], rows[2], mask, **rest)
            outputs.append(output.flatten(0, 1))
        return torch.cat(outputs).index_select(0, self._unpack_index).unsqueeze(0)
