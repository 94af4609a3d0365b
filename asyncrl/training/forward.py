"""Packed batches through a model. Invariant: a rollout's log-probabilities are those it has alone,
up to rounding, whatever shares its pass.

A model computes each token by itself but for attention, and transformers' models leave attention to
a function that can be chosen. This one puts the samples together, row by row, and has torch compute
their attention. So a prompt that several samples share is computed once, and autograd adds up the
gradients that each of them gives it. A model that looks at other tokens in another way gets the
rows as they are, each with its prompt, or one after the other. `asyncrl.training.trial` finds out
which of these a model computes rightly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from asyncrl.training.packing import PackedBatch, missing_to_size

NAME, PLAIN = "asyncrl_packed", "sdpa"
"""Our attention function among those of transformers, and the one that it stands for."""


Passes = Literal["packed", "padded", "alone"]
"""The ways to give a model samples: each token once, with our attention; row by row, padded on the
right; or each row in a pass of its own, without padding."""

_FOUND = "asyncrl_passes"
"""Attribute of a model that has been tried: its `Passes`."""


def passes(model: PreTrainedModel) -> Passes:
    """Passes of a model: those that were found to be right for it (`give`), or, of a model that
    nobody has tried, those that it says it can do."""
    found: Passes | None = getattr(model, _FOUND, None)
    return found or ("packed" if may_share(model) else "padded")


def give(model: PreTrainedModel, found: Passes) -> None:
    """Have the model given samples in this way from now on."""
    setattr(model, _FOUND, found)


def shares(model: PreTrainedModel) -> bool:
    """True if a model is given each token once."""
    return passes(model) == "packed"


def may_share(model: PreTrainedModel) -> bool:
    """True if a model says that it can be given each token once: all its layers have full
    attention, computed by torch's own function through the interface that ours is registered with,
    and nothing else of it looks at other tokens."""
    config: Any = model.config
    return (
        bool(model._supports_attention_backend)
        and not model._is_stateful
        and config._attn_implementation == PLAIN
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and getattr(config, "sliding_window", None) is None
    )


def log_probabilities(model: PreTrainedModel, packed: PackedBatch, temperature: float) -> Tensor:
    """Log-probability of each response token under the temperature-scaled distribution,
    float32 [tokens], with gradient."""
    logits = response_logits(model, packed, temperature)
    return -F.cross_entropy(logits, packed.targets.to(model.device), reduction="none")


def entropies(logits: Tensor) -> Tensor:
    """Entropy of each row's distribution in nats, float32 [tokens], with the gradient of the
    `logits`, float32 [tokens, vocabulary].

    >>> entropies(torch.zeros(1, 2)).exp().item()
    2.0
    """
    p = logits.softmax(-1)
    # a token that cannot be has no part in it, and 0 * -inf is NaN
    return logits.logsumexp(-1) - (p * logits.masked_fill(p == 0, 0.0)).sum(-1)


def response_logits(model: PreTrainedModel, packed: PackedBatch, temperature: float) -> Tensor:
    """Logits that each response token is drawn from, over the temperature: float32 [tokens,
    vocabulary], with gradient.

    The output layer runs at the positions that predict response tokens only (and a few more, so
    that there are few sizes), and what follows is float32 whatever the model's type.
    """
    device = model.device
    ids, logit_positions = packed.ids.to(device), packed.logit_positions.to(device)
    if shares(model):
        padded_rows = tuple(table.to(device) for table in packed.padded_rows)
        positions = packed.positions.to(device)[None]
        with _attention(model), _output_at(model, logit_positions):
            found: Tensor = model(
                input_ids=ids[None],
                position_ids=positions,
                use_cache=False,
                padded_rows=padded_rows,
                unpack_index=packed.unpack_index.to(device),
            ).logits
        return found[0, : len(logit_positions)].float() / temperature
    at = packed.unpack_index.to(device)[logit_positions]
    pieces, places, before = [], [], 0
    alone = passes(model) == "alone"
    for rows in (
        rows
        for table in packed.padded_rows
        for rows in torch.split(table, 1 if alone else len(table))
    ):
        here = torch.nonzero((at >= before) & (at < before + rows.numel()))[:, 0]
        if len(here):
            wanted = at[here] - before
            # alone: without the padding, and without what predicts nothing
            given = rows[:, : int(wanted.max()) + 1] if alone else rows
            with _output_at(model, wanted):
                pieces.append(
                    model(input_ids=ids[given.to(device)], use_cache=False).logits[0, : len(here)]
                )
            places.append(here)
        before += rows.numel()
    return torch.cat(pieces)[torch.argsort(torch.cat(places))].float() / temperature


@contextmanager
def _output_at(model: PreTrainedModel, places: Tensor) -> Iterator[None]:
    """Meanwhile the output layer runs at these places of its input, flattened, and then at the
    first of all for what is missing to a size. By a hook, so that whatever the model does to its
    logits afterwards (scale, soft cap) is done to these too."""
    places = F.pad(places, (0, missing_to_size(len(places))))

    def select(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0].flatten(0, 1).index_select(0, places).unsqueeze(0), *inputs[1:])

    head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    hook = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _attention(model: PreTrainedModel) -> Iterator[None]:
    """Meanwhile the model's attention is ours."""
    config: Any = model.config
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = PLAIN


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _: None,
    *,
    padded_rows: tuple[Tensor, ...],
    unpack_index: Tensor,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed batch: `query`, `key`, `value` are [1, heads, places, size]; gives [1,
    places, heads, size]."""
    flat = [of_all[0].transpose(0, 1).flatten(1) for of_all in (query, key, value)]
    outputs = []
    for table in padded_rows:
        rows = [
            places.index_select(0, table.flatten())
            .view(*table.shape, -1, of_all.shape[-1])
            .transpose(1, 2)
            for places, of_all in zip(flat, (query, key, value), strict=True)
        ]
        output, _ = sdpa_attention_forward(module, rows[0], rows[1], rows[2], None, **rest)
        outputs.append(output.flatten(0, 1))
    return torch.cat(outputs).index_select(0, unpack_index).unsqueeze(0), None


AttentionInterface.register(NAME, _attend)
