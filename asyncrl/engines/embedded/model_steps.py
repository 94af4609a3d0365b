"""The computations of the engine: prefill, of a whole context or of its new part, and decode.
Invariant: pure functions of their arguments, the parameters and the cache tensors, with no
branch on a shape, so that one trace serves any number of rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncrl.algorithms.routing.records import encoded, experts_of
from asyncrl.algorithms.routing.routers import passing
from asyncrl.engines.embedded.cache import DecodeLayer, OnwardLayer, PrefillLayer, layered
from asyncrl.engines.embedded.kernels import KernelDecodeLayer
from asyncrl.engines.embedded.sampler import sample
from asyncrl.tasks.images.sight import seen_images, showing
from asyncrl.tasks.images.vision_model import ImagePatches


class ModelSteps(nn.Module):
    """The steps of a model, in one module: a trace of them wraps each layer once."""

    layer: type[DecodeLayer] = DecodeLayer

    def __init__(self, model: PreTrainedModel, *, records: bool = False) -> None:
        super().__init__()
        self.model, self.records = model, records
        self.experts = experts_of(model) if records else 0

    def decode(
        self,
        ids: Tensor,
        positions: Tensor,
        offsets: Tensor,
        columns: Tensor,
        temperature: Tensor,
        uniforms: Tensor,
        *cache: Tensor,
    ) -> tuple[Tensor, ...]:
        """One token for each of the first rows of the cache.

        ids, positions, offsets: int64 [rows], the last known token, its position, and what is
        added to that for the model (an image has fewer positions than tokens); columns: `arange(n)`
        with n above every position of a live slot; temperature, uniforms: see `sample`; cache: keys
        and values of each layer, alternating. Returns tokens and log-probabilities, and the records
        of the rows' experts (`routing.records`) if the step `records` them."""
        rows = torch.arange(ids.shape[0])
        mask = self.visible(positions, columns, cache[0].dtype)
        layers = [
            self.layer(*pair, rows, positions, columns.shape[0])
            for pair in zip(cache[::2], cache[1::2], strict=True)
        ]
        with passing(self.model) if self.records else nullcontext() as passed:
            logits = self.model(
                input_ids=ids[:, None],
                attention_mask=mask[:, None, None],
                position_ids=(positions + offsets)[:, None],
                past_key_values=layered(layers),
                use_cache=True,
            ).logits
        sampled = sample(logits[:, 0], temperature, uniforms)
        return sampled if passed is None else (*sampled, encoded(passed, self.experts))

    def prefill(self, ids: Tensor, slots: Tensor, source: Tensor, *cache: Tensor) -> Tensor:
        """Keys and values of known tokens; nothing is sampled.

        ids: int64 [rows, tokens], padded on the right; slots, source: int64 [n], row `source[i]`
        is written to slot `slots[i]`. The result only signals completion."""
        positions = torch.arange(ids.shape[1])[None]
        layers = [
            PrefillLayer(*pair, slots, source) for pair in zip(cache[::2], cache[1::2], strict=True)
        ]
        done: Tensor = self.model.base_model(
            input_ids=ids, position_ids=positions, past_key_values=layered(layers), use_cache=True
        ).last_hidden_state[0, 0, 0]
        return done

    def onward(
        self, ids: Tensor, starts: Tensor, slots: Tensor, columns: Tensor, *cache: Tensor
    ) -> Tensor:
        """Keys and values of tokens that follow those in slots; nothing is sampled.

        ids: int64 [rows, tokens], padded on the right; starts, slots: int64 [rows], row i goes
        to slot `slots[i]` from position `starts[i]` on, padding into positions that are written
        again before they are read; columns: `arange(n)`, n above every position of a token. The
        result only signals completion."""
        places = starts[:, None] + torch.arange(ids.shape[1])[None]
        places = places.clamp(max=cache[1].shape[2] - 1)
        seen = columns[None, None] <= places[:, :, None]
        mask = torch.where(seen, 0.0, -torch.inf).to(cache[0].dtype)
        layers = [
            OnwardLayer(*pair, slots, places, columns.shape[0])
            for pair in zip(cache[::2], cache[1::2], strict=True)
        ]
        done: Tensor = self.model.base_model(
            input_ids=ids,
            attention_mask=mask[:, None],
            position_ids=places,
            past_key_values=layered(layers),
            use_cache=True,
        ).last_hidden_state[0, 0, 0]
        return done

    def visible(self, positions: Tensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
        """The mask of each row for attention, [rows, any]: here an additive one."""
        return torch.where(columns[None] <= positions[:, None], 0.0, -torch.inf).to(dtype)


class KernelSteps(ModelSteps):
    """The steps where decoding is over the compiled pieces, whose attention wants the rows'
    positions."""

    layer = KernelDecodeLayer

    def visible(self, positions: Tensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
        return positions[:, None]


class SeenPrefillStep(nn.Module):
    """`ModelSteps.prefill` of one sequence with images."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        ids: Tensor,
        shown: Sequence[ImagePatches],
        positions: Tensor,
        slots: Tensor,
        *cache: Tensor,
    ) -> None:
        """ids: int64 [tokens], negative where there are parts of the images `shown`; positions:
        int64 [3, tokens]; slots: int64 [n], to which the sequence is written."""
        source = torch.zeros_like(slots)
        layers = [
            PrefillLayer(*pair, slots, source) for pair in zip(cache[::2], cache[1::2], strict=True)
        ]
        with showing(self.model, ids, lambda: (seen_images(self.model, shown), None)):
            self.model.base_model(
                input_ids=ids.clamp(min=0)[None],
                position_ids=positions[:, None],
                past_key_values=layered(layers),
                use_cache=True,
            )
