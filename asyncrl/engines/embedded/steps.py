"""The two computations of the engine as modules: prefill and decode. Invariant: pure functions of their arguments, the parameters and the
cache tensors, with no choice that depends on a shape, so that one trace serves every number of rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncrl.engines.embedded.cache import DecodeLayer, PrefillLayer, layered
from asyncrl.engines.embedded.sampler import sample


class DecodeStep(nn.Module):
    """One token for each of the first rows of the cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids: Tensor, positions: Tensor, columns: Tensor, temperature: Tensor, uniforms: Tensor, *cache: Tensor
    ) -> tuple[Tensor, Tensor]:
        """ids, positions: int64 [rows], the last known token and its place; columns: `arange(n)` with n above every position;
        temperature, uniforms: see `sample`; cache: keys and values of each layer, alternating. Returns tokens and log-probabilities."""
        rows = torch.arange(ids.shape[0])
        mask, read = self.visible(positions, columns, cache)
        layers = [DecodeLayer(*pair, rows, positions, read) for pair in zip(cache[::2], cache[1::2], strict=True)]
        logits = self.model(
            input_ids=ids[:, None],
            attention_mask=mask[:, None, None],
            position_ids=positions[:, None],
            past_key_values=layered(layers),
            use_cache=True,
        ).logits
        return sample(logits[:, 0], temperature, uniforms)

    def visible(self, positions: Tensor, columns: Tensor, cache: Sequence[Tensor]) -> tuple[Tensor, int]:
        """What attention is told of each row [rows, any], and how many positions of the cache it gets: here an additive mask."""
        return torch.where(columns[None] <= positions[:, None], 0.0, -torch.inf).to(cache[0].dtype), columns.shape[0]


class KernelDecodeStep(DecodeStep):
    """The decode step over the compiled attention, which wants the rows' positions and the whole cache."""

    def visible(self, positions: Tensor, columns: Tensor, cache: Sequence[Tensor]) -> tuple[Tensor, int]:
        return positions[:, None], cache[1].shape[2]


class PrefillStep(nn.Module):
    """Keys and values of known tokens; nothing is sampled."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, slots: Tensor, source: Tensor, *cache: Tensor) -> Tensor:
        """ids: int64 [rows, tokens], padded on the right; slots, source: int64 [n], row `source[i]` is written to slot `slots[i]`. The
        result only says that it is done."""
        positions = torch.arange(ids.shape[1])[None]
        layers = [PrefillLayer(*pair, slots, source) for pair in zip(cache[::2], cache[1::2], strict=True)]
        done: Tensor = self.model.base_model(
            input_ids=ids, position_ids=positions, past_key_values=layered(layers), use_cache=True
        ).last_hidden_state[0, 0, 0]
        return done
