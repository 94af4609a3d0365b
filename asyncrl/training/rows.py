"""Rollouts laid out for forward passes. Invariant: a rollout's log-probabilities are those it has alone, whatever shares its pass.

Samples are sorted by length and cut into rectangles of rows nearly as long as each other, one forward pass each, so that hardly any padding
is paid for. Padding is on the right, where causal attention never looks: no mask is built, and any causal language model will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

RECTANGLE_TOKENS = 2048
"""A rectangle of more than one row has at most these, padding included: what stays in the caches of a CPU core while it is worked on."""
PASS_TOKENS = 128
"""What one more forward and backward pass costs, in tokens of padding, measured on small models."""


class Rectangle(NamedTuple):
    """Some samples of a micro-batch, one a row.

    `ids`: int64 [rows, width], right-padded. `predictors`: int64 [tokens], the place in `ids`, flattened, of the token before each
    response token. `targets`: int64 [tokens], the response ids. `tokens`: int64 [tokens], their places among the micro-batch's
    response tokens.
    """

    ids: Tensor
    predictors: Tensor
    targets: Tensor
    tokens: Tensor


def pack(ids: NDArray[np.int32], prompt_tokens: Sequence[int], response_tokens: Sequence[int]) -> list[Rectangle]:
    """Lay out samples: `ids` has, for each, its prompt (at least one token) and then its response. Raises ValueError where lengths and
    ids disagree or a prompt is empty."""
    prompts, responses = np.asarray(prompt_tokens, dtype=np.int64), np.asarray(response_tokens, dtype=np.int64)
    lengths = prompts + responses
    if len(ids) != lengths.sum():
        raise ValueError(f"{len(ids)} token ids came for samples of {lengths.sum()} tokens in all")
    if (prompts < 1).any():
        raise ValueError("a sample has an empty prompt: its first response token would have nothing to be predicted from")
    starts, answers = np.cumsum(lengths) - lengths, np.cumsum(responses) - responses
    order = np.argsort(lengths, kind="stable")
    rectangles = []
    for first, end in _cuts(lengths[order]):
        members = order[first:end]
        column = np.arange(lengths[members[-1]])
        inside = column < lengths[members, None]
        answered = inside & (column >= prompts[members, None])
        table = np.where(inside, ids[np.where(inside, starts[members, None] + column, 0)], 0).astype(np.int64)
        tokens = (answers - prompts)[members, None] + column
        rectangles.append(
            Rectangle(
                torch.from_numpy(table),
                torch.from_numpy(np.flatnonzero(answered) - 1),
                torch.from_numpy(table[answered]),
                torch.from_numpy(tokens[answered]),
            )
        )
    return rectangles


def _cuts(lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Cut samples of ascending length into `[first, end)`, so that all rectangles' tokens plus PASS_TOKENS for each are least, and none of
    several rows exceeds RECTANGLE_TOKENS (dynamic programming over the end of the last rectangle).

    Rows are a power of two: oneDNN compiles its kernels for each shape, and so they meet few shapes."""
    best = np.zeros(len(lengths) + 1)
    first = np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        rows = np.arange(end, 0, -1)
        area = rows * lengths[end - 1]
        allowed = (area <= RECTANGLE_TOKENS) & (rows & (rows - 1) == 0)
        allowed[-1] = True
        first[end] = np.argmin(np.where(allowed, best[:end] + area, np.inf))
        best[end] = best[first[end]] + area[first[end]] + PASS_TOKENS
    ends = [len(lengths)]
    while ends[-1]:
        ends.append(int(first[ends[-1]]))
    return [(start, end) for end, start in pairwise(ends)][::-1]


def part_of(rectangle: Rectangle, wanted: Tensor) -> Rectangle:
    """The rectangle of the wanted response tokens alone (bool [tokens], at least one of them), without rows that have none of them; a few
    of those stay where the rows would not be a power of two (see `_cuts`)."""
    width = rectangle.ids.shape[1]
    predictors = rectangle.predictors[wanted]
    needed = torch.zeros(len(rectangle.ids), dtype=torch.bool).index_fill(0, predictors // width, True)
    count = 1 << (int(needed.sum()) - 1).bit_length()
    rows = torch.argsort(~needed, stable=True)[:count].sort().values
    row = torch.searchsorted(rows, predictors // width)
    return Rectangle(rectangle.ids[rows], row * width + predictors % width, rectangle.targets[wanted], rectangle.tokens[wanted])


def log_probabilities(model: PreTrainedModel, rectangle: Rectangle, temperature: float) -> Tensor:
    """Log-probability of each response token of a rectangle under the temperature-scaled distribution, float32 [tokens], with gradient."""
    logits = response_logits(model, rectangle, temperature)
    return -F.cross_entropy(logits, rectangle.targets.to(model.device), reduction="none")


def response_logits(model: PreTrainedModel, rectangle: Rectangle, temperature: float) -> Tensor:
    """What each response token of a rectangle is drawn from: logits over the temperature, float32 [tokens, vocabulary], with gradient.

    The output layer runs at the positions that predict response tokens only, and what follows is float32 whatever the model's type.
    """
    predictors = rectangle.predictors.to(model.device)

    def select(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0].flatten(0, 1)[predictors].unsqueeze(0), *inputs[1:])

    # By a hook on the output layer, so that whatever the model does to its logits afterwards (scale, soft cap) is done to these too.
    head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    hook = head.register_forward_pre_hook(select)
    try:
        logits: Tensor = model(input_ids=rectangle.ids.to(model.device), use_cache=False).logits
    finally:
        hook.remove()
    return logits[0].float() / temperature
