"""Rollouts laid out for one forward pass. Invariant: a rollout's log-probabilities are those it has alone, whatever shares its pass.

Samples are sorted by length and cut into blocks of equal width; everything but attention runs on all blocks as one stream of tokens,
and attention runs block by block on views of it. So little padding is paid for (what lies between a sample and the longest of its
block), no mask is built, and any architecture works whose attention goes through transformers' attention interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "asyncrl_blocks"
_SDPA: Callable[..., tuple[Tensor, None]] = sdpa_attention_forward
BLOCK_TOKENS = 16
"""What one more block costs, in tokens of padding: the calls of its attention, measured on small models."""


class Block(NamedTuple):
    """`rows` samples, each of `width` tokens with its padding, from position `start` of the stream."""

    start: int
    rows: int
    width: int


class Rows(NamedTuple):
    """A micro-batch as one stream. Response tokens are in the order of the samples as they were given.

    `ids`, `positions`: int64 [stream]. `predictors`: int64 [tokens], where in the stream the token before each response token is.
    `targets`: int64 [tokens], the response ids.
    """

    ids: Tensor
    positions: Tensor
    blocks: tuple[Block, ...]
    predictors: Tensor
    targets: Tensor


def pack(ids: NDArray[np.int32], prompt_tokens: Sequence[int], response_tokens: Sequence[int]) -> Rows:
    """Lay out samples: `ids` has, for each, its prompt (at least one token) and then its response. Raises ValueError where lengths and
    ids disagree or a prompt is empty."""
    prompts, responses = np.asarray(prompt_tokens, dtype=np.int64), np.asarray(response_tokens, dtype=np.int64)
    lengths = prompts + responses
    if len(ids) != lengths.sum():
        raise ValueError(f"{len(ids)} token ids came for samples of {lengths.sum()} tokens in all")
    if (prompts < 1).any():
        raise ValueError("a sample has an empty prompt: its first response token would have nothing to be predicted from")
    order = np.argsort(lengths, kind="stable")
    blocks = _blocks(lengths[order])
    size = sum(block.rows * block.width for block in blocks)
    starts = np.empty(len(lengths), dtype=np.int64)
    starts[order] = np.concatenate([block.start + block.width * np.arange(block.rows) for block in blocks])
    within = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    place = np.repeat(starts, lengths) + within
    stream = np.zeros(size, dtype=np.int64)
    stream[place] = ids
    answered = within >= np.repeat(prompts, lengths)
    return Rows(
        torch.from_numpy(stream),
        torch.from_numpy(np.concatenate([np.tile(np.arange(block.width), block.rows) for block in blocks])),
        blocks,
        torch.from_numpy(place[answered] - 1),
        torch.from_numpy(ids[answered].astype(np.int64)),
    )


def _blocks(lengths: NDArray[np.int64]) -> tuple[Block, ...]:
    """Cut ascending lengths into blocks so that padding plus BLOCK_TOKENS a block is least (dynamic programming over distinct lengths)."""
    widths, counts = np.unique(lengths, return_counts=True)
    before = np.concatenate([[0], np.cumsum(counts)])
    best = np.zeros(len(widths) + 1)
    cut = np.zeros(len(widths) + 1, dtype=np.int64)
    for end in range(1, len(widths) + 1):
        costs = best[:end] + (before[end] - before[:end]) * widths[end - 1] + BLOCK_TOKENS
        cut[end] = np.argmin(costs)
        best[end] = costs[cut[end]]
    cuts = [len(widths)]
    while cuts[-1]:
        cuts.append(int(cut[cuts[-1]]))
    blocks: list[Block] = []
    start = 0
    for first, end in zip(cuts[:0:-1], cuts[-2::-1], strict=True):
        rows, width = int(before[end] - before[first]), int(widths[end - 1])
        blocks.append(Block(start, rows, width))
        start += rows * width
    return tuple(blocks)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, blocks: Sequence[Block] = (), **kwargs: Any
) -> tuple[Tensor, None]:
    """Causal attention of each sample to itself. Tensors are [1, heads, stream, size]; returns [1, stream, heads, size]."""
    if not blocks:
        return _SDPA(module, query, key, value, attention_mask, **kwargs)
    window = kwargs.get("sliding_window")
    outputs = []
    for block in blocks:
        stop = block.start + block.rows * block.width
        views = (t[0, :, block.start : stop].view(-1, block.rows, block.width, t.shape[-1]).transpose(0, 1) for t in (query, key, value))
        mask = _window_mask(block.width, window, query.device) if window and window < block.width else None
        output, _ = _SDPA(module, *views, mask, **(kwargs | {"is_causal": True}))
        outputs.append(output.flatten(0, 1))
    return torch.cat(outputs).unsqueeze(0), None


def _window_mask(width: int, window: int, device: torch.device) -> Tensor:
    """bool [width, width]: causal, and no further back than `window` tokens, the token itself included."""
    distance = torch.arange(width, device=device)[:, None] - torch.arange(width, device=device)[None, :]
    return (distance >= 0) & (distance < window)


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)


def prepare(model: PreTrainedModel) -> None:
    """Make `model` score rows. Raises ValueError for an architecture whose samples would see each other."""
    model.set_attn_implementation(ATTENTION)
    ids = torch.arange(7, dtype=torch.int32).numpy() % model.config.get_text_config().vocab_size
    with torch.no_grad():
        alone = log_probabilities(model, pack(ids[:4], [2], [2]), 1.0)
        shared = log_probabilities(model, pack(np.concatenate([ids[:4], ids[2:]]), [2, 1], [2, 4]), 1.0)[:2]
    if not torch.allclose(alone, shared, atol=0.05 if alone.dtype == torch.bfloat16 else 1e-3):
        raise ValueError(
            f"{type(model).__name__} cannot be trained on packed rollouts: one rollout's log-probabilities depend on its neighbours"
        )


def log_probabilities(model: PreTrainedModel, rows: Rows, temperature: float) -> Tensor:
    """Log-probability of each response token under the temperature-scaled distribution, float32 [tokens], with gradient.

    Logits are computed at the positions that predict response tokens only, and the log-softmax is float32 whatever the model's type.
    """
    device = model.device
    output = model(
        input_ids=rows.ids.to(device).unsqueeze(0),
        position_ids=rows.positions.to(device).unsqueeze(0),
        logits_to_keep=rows.predictors.to(device),
        use_cache=False,
        blocks=rows.blocks,
    )
    return -F.cross_entropy(output.logits[0].float() / temperature, rows.targets.to(device), reduction="none")
