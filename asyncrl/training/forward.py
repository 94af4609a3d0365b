"""Forward passes of packed batches. Invariant: a rollout's log-probabilities are those it has
alone, up to rounding, whichever samples share its pass.

A model computes each token independently except for attention, and transformers' models let the
attention function be replaced. Ours makes each place of a prefix tree attend to its own path. So a
shared prefix is computed once, and autograd sums the gradients of all samples that share it. A
model that mixes tokens in another way gets whole samples, as rows or one by one.
`asyncrl.training.trial` determines which of these are correct for a model.

Logits are the largest tensor of a pass: 5 GB of 8,000 tokens and 151,936 ids. So where it is known
what a model does to the results of its output layer, they are made in chunks (`chunked_logits`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from asyncrl.algorithms.routing.balance import RoutedTokens
from asyncrl.algorithms.routing.routers import passing
from asyncrl.training.chunked_logits import Entropy, Head, LogitFigures, exact
from asyncrl.training.context_ranks import GatheredAttention, context_of, of_all
from asyncrl.training.logit_changes import Change
from asyncrl.training.packing import PackedBatch, missing_to_size
from asyncrl.training.recomputation import recomputed
from asyncrl.training.shown_images import seeing
from asyncrl.training.trees.attention_tables import path_tables
from asyncrl.training.trees.block_attention import BlockAttention, ComparedAttention
from asyncrl.training.trees.table_attention import TableAttention

NAME, PLAIN = "asyncrl_packed", "sdpa"
"""Names of our attention function, and of the one that it replaces, in transformers."""


Passes = Literal["packed", "padded", "alone"]
"""The ways to pass samples to a model: each token once, with our attention; row by row, padded on
the right; or each row in a pass of its own, without padding."""

_PASSES = "asyncrl_passes"
"""Attribute of a model that has been tried: its `Passes`."""
_BLOCKS = "asyncrl_blocks"
"""Attribute of a model whose attention is computed by blocks."""
_CHUNKS = "asyncrl_chunks"
"""Attribute of a model whose logits are made in chunks: what it does to them, `Change`s."""


def passes(model: PreTrainedModel) -> Passes:
    """Passes of a model: those that were set after a trial (`use_passes`), or, for an untried
    model, those that its configuration implies."""
    tried: Passes | None = getattr(model, _PASSES, None)
    return tried or ("packed" if may_share(model) else "padded")


def use_passes(model: PreTrainedModel, way: Passes) -> None:
    """Pass samples to the model in this way from now on."""
    setattr(model, _PASSES, way)


def shares(model: PreTrainedModel) -> bool:
    """True if a model is given each token once."""
    return passes(model) == "packed"


def falls_back(model: PreTrainedModel) -> bool:
    """True if a model on a GPU has its attention computed by tables, because blocks failed."""
    return model.device.type == "cuda" and shares(model) and not getattr(model, _BLOCKS, False)


class TreeAttention(Protocol):
    """Attention of all places of a packed batch at once."""

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **rest: Any
    ) -> Tensor:
        """Attention of a layer: `query`, `key`, `value` are [1, heads, places, size]; gives [1,
        places, heads, size]."""
        ...


def attention_of(model: PreTrainedModel, packed: PackedBatch) -> TreeAttention:
    """The attention of a packed batch in this model: by blocks if these agree with the tables
    (`attend_in_blocks`), else by tables."""
    tables, blocks = _ways(model, packed)
    return _gathering(model, packed, blocks() if getattr(model, _BLOCKS, False) else tables())


def _ways(
    model: PreTrainedModel, packed: PackedBatch
) -> tuple[Callable[[], TableAttention], Callable[[], BlockAttention]]:
    """The makers of both attentions of a packed batch, of its own places to all."""
    own = None if packed.divided is None else packed.divided.own
    return (
        lambda: TableAttention(packed.tables, packed.unpack_index, model.device),
        lambda: BlockAttention(packed.ends, model.device, own),
    )


def _gathering(model: PreTrainedModel, packed: PackedBatch, own: TreeAttention) -> TreeAttention:
    """The attention of a rank's part of a packed batch; of a whole one `own`."""
    ranks = context_of(model)
    if ranks is None or packed.divided is None:
        return own
    return GatheredAttention(own, ranks, packed.divided)


def blocks_distance(model: PreTrainedModel, packed: PackedBatch) -> float:
    """Distance between attention by tables and by blocks in a pass of the model, in float32, with
    gradients: the largest of all layers, relative to the size of the numbers."""
    ranks, places = context_of(model), len(packed.tree.ids)
    if ranks is not None:
        packed, _ = ranks.part(packed)
        assert packed.divided is not None
        places = int((packed.divided.own < places).sum())
    tables, blocks = _ways(model, packed)
    compared = ComparedAttention(tables(), blocks(), places)
    _packed(model, packed, _gathering(model, packed, compared), inputs=False)
    return compared.distance


def attend_in_blocks(model: PreTrainedModel) -> None:
    """Compute the model's attention by blocks from now on."""
    setattr(model, _BLOCKS, True)


def make_logits_in_chunks(model: PreTrainedModel, changes: Sequence[Change] = ()) -> None:
    """Compute the model's logits in chunks from now on. The `changes` are all that it does to the
    results of its output layer (`logit_changes`)."""
    setattr(model, _CHUNKS, changes)


def may_share(model: PreTrainedModel) -> bool:
    """True if a model's configuration allows each token once: all its layers have full attention,
    computed by torch's own function through the interface that ours is registered with, and nothing
    else in it mixes tokens."""
    config: Any = model.config.get_text_config()
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
    return figures(model, packed, temperature).logprob


def log_probability(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probability of each target (int64 [tokens]) by its logits (float32 [tokens, vocabulary]):
    float32 [tokens]."""
    return -F.cross_entropy(logits, targets, reduction="none")


def figures(
    model: PreTrainedModel,
    packed: PackedBatch,
    temperature: float,
    entropy: Entropy = "no",
    routed: RoutedTokens | None = None,
) -> LogitFigures:
    """Figures of all response tokens, by their logits over the temperature; with gradient. `routed`
    gets what the model's routers did with the tokens, which predict response tokens, in the order
    of these. Ranks that compute the batch together have all figures, and the gradient of their
    own."""
    ranks = context_of(model)
    if ranks is None:
        return _figures(model, packed, temperature, entropy, routed)
    part, own = ranks.part(packed)
    found, tokens = _figures(model, part, temperature, entropy, routed), own.to(model.device)
    logprob, known = (
        None if each is None else of_all(each, ranks, tokens, len(packed.targets)) for each in found
    )
    assert logprob is not None
    return LogitFigures(logprob, known)


def _figures(
    model: PreTrainedModel,
    packed: PackedBatch,
    temperature: float,
    entropy: Entropy,
    routed: RoutedTokens | None,
) -> LogitFigures:
    targets = packed.targets.to(model.device)
    head = _in_chunks(model, len(targets), temperature)
    if head is not None:
        inputs = _outputs(model, packed, inputs=True, routed=routed)
        return head.figures(inputs, targets, entropy)
    logits = exact(_outputs(model, packed, inputs=False, routed=routed)) / temperature
    found = None
    if entropy != "no":
        found = entropies(logits if entropy == "learned" else logits.detach())
    return LogitFigures(log_probability(logits, targets), found)


@torch.no_grad()
def measured_by_logits(
    model: PreTrainedModel,
    packed: PackedBatch,
    temperature: float,
    measure: Callable[[Tensor, Tensor], Sequence[Tensor]],
) -> list[Tensor]:
    """Measures of all response tokens, each float32 [tokens], without gradient: `measure` gives
    them for a chunk's logits over the temperature, float32 [tokens, vocabulary], and ids, int64
    [tokens]."""
    ranks, part = context_of(model), packed
    own: Tensor | None = None
    if ranks is not None:
        part, own = ranks.part(packed)
    found = [measure(*rows) for rows in _logits_in_chunks(model, part, temperature)]
    every = [torch.cat(each) for each in zip(*found, strict=True)]
    if ranks is None or own is None:
        return every
    tokens, count = own.to(model.device), len(packed.targets)
    return [of_all(each, ranks, tokens, count) for each in every]


def _logits_in_chunks(
    model: PreTrainedModel, packed: PackedBatch, temperature: float
) -> Iterator[tuple[Tensor, Tensor]]:
    targets = packed.targets.to(model.device)
    head = _in_chunks(model, len(targets), temperature)
    if head is None:
        yield response_logits(model, packed, temperature), targets
        return
    inputs = _outputs(model, packed, inputs=True)
    yield from zip(head.each(inputs), torch.split(targets, head.chunk), strict=True)


def _in_chunks(model: PreTrainedModel, tokens: int, temperature: float) -> Head | None:
    """Maker of the logits of so many tokens in chunks; None where they are made as one."""
    changes: Sequence[Change] | None = getattr(model, _CHUNKS, None)
    if changes is None:
        return None
    layer: Any = model.get_output_embeddings()
    head = Head(layer, changes, temperature)
    return head if tokens > head.chunk else None


def entropies(logits: Tensor) -> Tensor:
    """Entropy of each row's distribution in nats, float32 [tokens], with the gradient of the
    `logits`, float32 [tokens, vocabulary].

    >>> entropies(torch.zeros(1, 2)).exp().item()
    2.0
    """
    p = logits.softmax(-1)
    # impossible tokens contribute nothing, but 0 * -inf is NaN
    return logits.logsumexp(-1) - (p * logits.masked_fill(p == 0, 0.0)).sum(-1)


def response_logits(model: PreTrainedModel, packed: PackedBatch, temperature: float) -> Tensor:
    """Logits that each response token is drawn from, over the temperature: float32 [tokens,
    vocabulary] (float64 where the model is), with gradient.

    The output layer runs at the positions that predict response tokens only (and a few more, so
    that there are few sizes), and later computations are in float32 at least, whatever the model's
    type.
    """
    return exact(_outputs(model, packed, inputs=False)) / temperature


def _outputs(
    model: PreTrainedModel,
    packed: PackedBatch,
    *,
    inputs: bool,
    routed: RoutedTokens | None = None,
) -> Tensor:
    """Logits of each response token, [tokens, vocabulary]; or the `inputs` of the output layer
    there, [tokens, size]."""
    if packed.shown is not None and not shares(model):
        raise ValueError("images need passes that give each token once, which this model has not")
    if shares(model):
        return _packed(model, packed, attention_of(model, packed), inputs=inputs, routed=routed)
    device = model.device
    ids, recorded = packed.ids.to(device), _moved(packed.recorded, device)
    column = packed.positions[packed.logit_positions]
    pieces, places = [], []
    alone = passes(model) == "alone"
    # where samples share tokens, a row for attention may have segments of several
    tables = path_tables(packed.tree) if packed.tree.shared.any() else packed.tables
    for table in tables:
        row_of = torch.full((len(packed.tree.length),), -1)
        row_of[table.sequences] = torch.arange(len(table.sequences))
        row = row_of[packed.sequences]
        size = 1 if alone else len(table.sequences)
        for first in range(0, len(table.sequences), size):
            here = torch.nonzero((row >= first) & (row < first + size))[:, 0]
            if len(here):
                # alone: without padding and tokens that predict nothing
                width = int(column[here].max()) + 1 if alone else table.keys.shape[1]
                keys = table.keys[first : first + size, :width].to(device)
                wanted = (row[here] - first) * width + column[here]
                pieces.append(
                    _at(
                        model,
                        wanted.to(device),
                        inputs=inputs,
                        routed=routed,
                        recorded=None if recorded is None else recorded[keys].flatten(0, 1),
                        input_ids=ids[keys],
                    )
                )
                places.append(here)
    order = torch.argsort(torch.cat(places)).to(device)
    if routed is not None:
        routed.reorder(order)
    return torch.cat(pieces)[order]


def _moved(recorded: Tensor | None, device: torch.device) -> Tensor | None:
    return None if recorded is None else recorded.to(device).long()


def _packed(
    model: PreTrainedModel,
    packed: PackedBatch,
    attention: TreeAttention,
    *,
    inputs: bool,
    routed: RoutedTokens | None = None,
) -> Tensor:
    device = model.device
    given: dict[str, Any] = {
        "input_ids": packed.ids.to(device)[None],
        "position_ids": packed.positions.to(device)[None],
    }
    if packed.shown is not None:  # parts of images have negative ids, and are seen
        given["input_ids"] = given["input_ids"].clamp(min=0)
        given["position_ids"] = packed.shown.positions.to(device)[:, None]
    with _attention(model), seeing(model, packed.ids, packed.shown):
        return _at(
            model,
            packed.logit_positions.to(device),
            inputs=inputs,
            routed=routed,
            recorded=_moved(packed.recorded, device),
            **given,
            tree=attention,
        )


def _at(
    model: PreTrainedModel,
    places: Tensor,
    *,
    inputs: bool,
    routed: RoutedTokens | None = None,
    recorded: Tensor | None = None,
    **arguments: Any,
) -> Tensor:
    """Logits of a pass at these places of the output layer's input, flattened; or that input. The
    layer runs there, plus at repeated first places that fill up the size; or at one place alone.
    This uses a hook, so that later changes of the logits by the model (scale, soft cap) apply,
    too."""
    padded = F.pad(places, (0, missing_to_size(len(places))))
    caught: list[Tensor] = []

    def select(_: Any, layer_inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        flat = layer_inputs[0].flatten(0, 1)
        if inputs:
            caught.append(flat.index_select(0, places))
            return (flat[None, :1], *layer_inputs[1:])
        return (flat.index_select(0, padded).unsqueeze(0), *layer_inputs[1:])

    layer: nn.Module = model.get_output_embeddings()
    hook = layer.register_forward_pre_hook(select)
    try:
        with passing(model, recorded) as passed, recomputed(model):
            logits: Tensor = model(**arguments, use_cache=False).logits
    finally:
        hook.remove()
    if routed is not None and passed is not None:
        routed.add(passed, places)
    return caught[0] if inputs else logits[0, : len(places)]


@contextmanager
def _attention(model: PreTrainedModel) -> Iterator[None]:
    """Use our attention in the model for the length of the block."""
    config: Any = model.config.get_text_config()
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
    tree: TreeAttention,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed batch, as transformers calls it."""
    return tree.attend(module, query, key, value, **rest), None


AttentionInterface.register(NAME, _attend)
