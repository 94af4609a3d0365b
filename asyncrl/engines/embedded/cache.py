"""The slot cache and the attention that reads it. Invariant: a query sees only its own slot's
positions, up to its own.

Keys lie transposed, [slots, heads, head width, context], and values as [slots, heads, context, head
width]: with one query a row both products of attention are then plain batched matrix products,
several times faster on a CPU than a fused kernel made for many queries. The model code stays
transformers' own: it calls the cache layers and the attention below through their public
interfaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

ATTENTION = "asyncrl_slots"
_MORE = ("s_aux", "softcap", "position_bias")
"""Arguments of other attention that change what it computes."""


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Common base of both layers below, as transformers sees them: a pre-allocated cache that does
    not determine masks or positions."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise AssertionError("a slot layer is created with its tensors")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        raise AssertionError("masks are made by the decode step")

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        assert self.values is not None
        return self.values.shape[2]


class DecodeLayer(_SlotLayer):
    """Rows 0.. of the cache, one new position each; attention reads the first `columns`
    positions."""

    def __init__(
        self, keys: Tensor, values: Tensor, rows: Tensor, positions: Tensor, columns: int
    ) -> None:
        super().__init__(keys, values)
        self.rows, self.positions, self.columns = rows, positions, columns

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.keys is not None and self.values is not None
        self.keys[self.rows, :, :, self.positions] = key_states[:, :, 0]
        self.values[self.rows, :, self.positions] = value_states[:, :, 0]
        rows = self.rows.shape[0]
        return self.keys[:rows, :, :, : self.columns], self.values[:rows, :, : self.columns]


class PrefillLayer(_SlotLayer):
    """Prompts from position 0: row `source[i]` of the batch goes to slot `slots[i]`, so equal
    prompts are computed once."""

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor, source: Tensor) -> None:
        super().__init__(keys, values)
        self.slots, self.source = slots, source

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.keys is not None and self.values is not None
        tokens = key_states.shape[2]
        self.keys[self.slots, :, :, :tokens] = key_states[self.source].transpose(2, 3)
        self.values[self.slots, :, :tokens] = value_states[self.source]
        return key_states, value_states


class OnwardLayer(_SlotLayer):
    """Tokens that follow those already in slots: row i of the batch goes to the positions
    `places[i]` (int64 [rows, tokens]) of slot `slots[i]`; attention reads the first `columns`
    positions."""

    def __init__(
        self, keys: Tensor, values: Tensor, slots: Tensor, places: Tensor, columns: int
    ) -> None:
        super().__init__(keys, values)
        self.slots, self.places, self.columns = slots, places, columns

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.keys is not None and self.values is not None
        self.keys[self.slots[:, None], :, :, self.places] = key_states.transpose(1, 2)
        self.values[self.slots[:, None], :, self.places] = value_states.transpose(1, 2)
        return (
            self.keys[:, :, :, : self.columns][self.slots],
            self.values[:, :, : self.columns][self.slots],
        )


def layered(layers: Sequence[_SlotLayer]) -> Cache:
    return Cache(layers=list(layers))


def _repeated(x: Tensor, times: int) -> Tensor:
    """[rows, groups, tokens, width] to [rows, groups * times, tokens, width], each group `times`
    times in a row."""
    rows, groups, tokens, width = x.shape
    return (
        x[:, :, None]
        .expand(rows, groups, times, tokens, width)
        .reshape(rows, groups * times, tokens, width)
    )


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention in transformers' interface. Without a mask: causal over the batch itself (prefill;
    rows are padded on the right, where nothing looks). With one: over the slot cache, `key`
    transposed, a single query a row (decode) or several (the new part of a context). Raises
    ValueError where the model's attention needs more."""
    for name in _MORE:
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} computes attention with {name}, which the embedded "
                "engine does not support; set engine.kind to sglang or vllm"
            )
    rows, heads, tokens, width = query.shape
    groups = key.shape[1]
    scale = width**-0.5 if scaling is None else scaling
    if attention_mask is None:
        key, value = (_repeated(x, heads // groups) for x in (key, value))
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale
        ).transpose(1, 2), None
    if tokens > 1:
        key, value = (_repeated(x, heads // groups) for x in (key.transpose(2, 3), value))
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scale
        ).transpose(1, 2), None
    scores = torch.matmul((query * scale).reshape(rows, groups, heads // groups, width), key).add_(
        attention_mask
    )
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value).reshape(rows, 1, heads, -1), None


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Use an attention in the layers of text of a model; its tower for images keeps its own."""
    text = model.config.get_text_config()
    parts = [key for key in model.config.sub_configs if getattr(model.config, key) is text]
    model.set_attn_implementation(dict.fromkeys(parts, name) if parts else name)


AttentionInterface.register(ATTENTION, attend)
