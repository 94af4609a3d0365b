"""Rollouts laid out for forward passes. Invariant: a token stands after its own past and nothing
else, whatever shares its pass.

The samples of a forward pass are a bundle. In it a prompt that several samples have stands once,
and each response once but for its last token, which predicts nothing; one after another, without
padding. That is what a model computes token by token. Attention alone needs samples whole: for it
they are rows of rectangles, each of rows nearly as long as each other, so that hardly any padding
is paid for. That is on the right, where causal attention never looks: no mask is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BUNDLE_TOKENS = 3072
"""A bundle costs at most these, rows counted with ROW_SHARE: what stays in the caches of a CPU core
while it is worked on. Or twice what the longest sample of the micro-batch costs alone, where that
is more: its prompt is worth sharing, and memory has to do for it anyway."""
ROW_SHARE = 0.25
"""What a token costs in a row of a rectangle, beside what it costs in the bundle: query, key, value
and attention, of all in a layer."""
RECTANGLE_TOKENS = 128
"""What one more rectangle costs, in tokens of padding, measured on small models."""


class PackedBatch(NamedTuple):
    """Some samples of a micro-batch, for one forward pass.

    `ids`, `positions`: int64 [places], each token once, and where it stands in its sample; at the
    end a few that are of no sample, so that there are few sizes (`missing_to_size`). `padded_rows`:
    int64 [rows, width] each, the places of one sample a row, right-padded. `unpack_index`: int64 [places],
    where a place is in the rectangles, flattened and joined (a shared prompt: in the first of its
    rows). Of the response tokens, int64 [tokens] each: `logit_positions`, the place of the token
    before; `rows`, which row the sample is of all rectangles'; `targets`, the ids; `tokens`, their
    places among the micro-batch's response tokens.
    """

    ids: Tensor
    positions: Tensor
    padded_rows: tuple[Tensor, ...]
    unpack_index: Tensor
    logit_positions: Tensor
    rows: Tensor
    targets: Tensor
    tokens: Tensor


def missing_to_size(count: int) -> int:
    """What so many rows lack to one of sixteen sizes between two powers of two: oneDNN compiles
    kernels for each size, and keeps them."""
    return -count % max(8, 1 << count.bit_length() >> 5)


class _Samples(NamedTuple):
    """Of each sample of a micro-batch, int64 [samples]: its first id, the tokens of its prompt and
    of its response, and its first response token among those of all."""

    start: NDArray[np.int64]
    prompt: NDArray[np.int64]
    response: NDArray[np.int64]
    answer: NDArray[np.int64]

    @property
    def seen(self) -> NDArray[np.int64]:
        """The tokens that something is predicted from."""
        return self.prompt + self.response - 1


def pack(
    ids: NDArray[np.int32],
    prompt_tokens: Sequence[int],
    response_tokens: Sequence[int],
    *,
    shared: bool,
) -> list[PackedBatch]:
    """Lay out samples: `ids` has, for each, its prompt (at least one token) and then its response.
    Samples with the same prompt share it where that is `shared`. Raises ValueError where lengths
    and ids disagree or a prompt is empty."""
    prompts, responses = (
        np.asarray(prompt_tokens, dtype=np.int64),
        np.asarray(response_tokens, dtype=np.int64),
    )
    lengths = prompts + responses
    if len(ids) != lengths.sum():
        raise ValueError(f"{len(ids)} token ids came for samples of {lengths.sum()} tokens in all")
    if (prompts < 1).any():
        raise ValueError(
            "a sample has an empty prompt: its first response token would have nothing to be "
            "predicted from"
        )
    of = _Samples(
        np.cumsum(lengths) - lengths, prompts, responses, np.cumsum(responses) - responses
    )
    alike: dict[bytes | int, list[int]] = {}
    for sample in np.argsort(lengths, kind="stable").tolist():
        start = of.start[sample]
        if responses[sample]:
            alike.setdefault(
                ids[start : start + prompts[sample]].tobytes() if shared else sample, []
            ).append(sample)
    return [_laid_out(ids, of, bundle) for bundle in _bundles(alike.values(), of)]


def _bundles(alike: Iterable[list[int]], of: _Samples) -> list[list[list[int]]]:
    """Bundles of samples, from lists of samples with one prompt each; such a list is divided only
    where it is too much for one bundle."""
    row = of.response - 1 + ROW_SHARE * of.seen
    most = max(BUNDLE_TOKENS, 2 * float((of.prompt + row).max(initial=0)))
    bundles: list[list[list[int]]] = []
    room = 0.0
    for samples in alike:
        prompt, whole = float(of.prompt[samples[0]]), float(row[samples].sum())
        if not bundles or prompt + whole > room:
            bundles.append([])
            room = most
        room -= prompt
        bundles[-1].append([])
        for sample in samples:
            if row[sample] > room:
                bundles.append([[]])
                room = most - prompt
            bundles[-1][-1].append(sample)
            room -= float(row[sample])
    return bundles


def _laid_out(ids: NDArray[np.int32], of: _Samples, sharing: list[list[int]]) -> PackedBatch:
    """The bundle of these samples, those of each inner list with one prompt."""
    first, counts = (
        np.array([samples[0] for samples in sharing]),
        [len(samples) for samples in sharing],
    )
    samples = np.concatenate([np.array(samples) for samples in sharing])
    sizes = np.concatenate([of.prompt[first], of.response[samples] - 1])
    places = np.cumsum(sizes) - sizes
    sources = _ranges(
        np.concatenate([of.start[first], of.start[samples] + of.prompt[samples]]), sizes
    )
    positions = _ranges(np.concatenate([np.zeros_like(first), of.prompt[samples]]), sizes)
    head, body = np.repeat(places[: len(first)], counts), places[len(first) :]

    order = np.argsort(of.seen[samples], kind="stable")
    padded_rows, logit_positions, rows, tokens = [], [], [], []
    for begin, end in _cuts(of.seen[samples[order]]):
        chosen = order[begin:end, None]
        members = samples[chosen]
        column = np.arange(of.seen[members[-1, 0]])
        prompt = of.prompt[members]
        inside = column < of.seen[members]
        table = np.where(
            inside,
            np.where(column < prompt, head[chosen], body[chosen] - prompt) + column,
            head[chosen],
        )
        predicts = inside & (column >= prompt - 1)
        padded_rows.append(table)
        logit_positions.append(table[predicts])
        rows.append(begin + np.nonzero(predicts)[0])
        tokens.append((of.answer[members] + column - (prompt - 1))[predicts])
    token = np.concatenate(tokens)
    answers = _ranges(of.start + of.prompt, of.response)
    of_tokens = (
        np.concatenate(logit_positions),
        np.concatenate(rows),
        ids[answers[token]].astype(np.int64),
        token,
    )
    return _bundle(ids[sources].astype(np.int64), positions, padded_rows, *of_tokens)


def _ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """`sizes[i]` numbers counted up from `starts[i]`, for each i, joined."""
    return np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())


def _bundle(
    ids: NDArray[np.int64],
    positions: NDArray[np.int64],
    padded_rows: Sequence[NDArray[np.int64]],
    *of_tokens: NDArray[np.int64],
) -> PackedBatch:
    """A bundle, filled up. `of_tokens`: predictors, rows, targets and tokens."""
    missing = missing_to_size(len(ids))
    unpack_index = np.zeros(len(ids) + missing, dtype=np.int64)
    joined = np.concatenate([padded_row.ravel() for padded_row in padded_rows])
    unpack_index[joined[::-1]] = np.arange(len(joined))[
        ::-1
    ]  # of several, the first is written last
    return PackedBatch(
        torch.from_numpy(np.pad(ids, (0, missing))),
        torch.from_numpy(np.pad(positions, (0, missing))),
        tuple(map(torch.from_numpy, padded_rows)),
        torch.from_numpy(unpack_index),
        *map(torch.from_numpy, of_tokens),
    )


def _cuts(lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Cut samples of ascending length into rectangles `[first, end)`, so that all their tokens plus
    RECTANGLE_TOKENS for each are least (dynamic programming over the end of the last rectangle;
    those as long as each other stay together)."""
    width, first_of = np.unique(lengths, return_index=True)
    starts = np.append(first_of, len(lengths))
    best, before = np.zeros(len(starts)), np.zeros(len(starts), dtype=np.int64)
    for end in range(1, len(starts)):
        cost = best[:end] + (starts[end] - starts[:end]) * width[end - 1]
        before[end] = np.argmin(cost)
        best[end] = cost[before[end]] + RECTANGLE_TOKENS
    ends = [len(starts) - 1]
    while ends[-1]:
        ends.append(int(before[ends[-1]]))
    return [(int(starts[first]), int(starts[end])) for end, first in pairwise(ends)][::-1]


def part_of(bundle: PackedBatch, wanted: Tensor) -> PackedBatch:
    """The bundle of the wanted response tokens alone (bool [tokens], at least one of them), without
    samples that have none of them."""
    chosen = wanted.numpy()
    needed, rows = np.unique(bundle.rows.numpy()[chosen], return_inverse=True)
    padded_rows: list[NDArray[np.int64]] = []
    before = 0
    for padded_row in bundle.padded_rows:
        here = needed[(needed >= before) & (needed < before + len(padded_row))] - before
        before += len(padded_row)
        if len(here):
            padded_rows.append(padded_row.numpy()[here])
    kept = np.zeros(len(bundle.ids), dtype=bool)
    kept[np.concatenate([padded_row.ravel() for padded_row in padded_rows])] = True
    place = np.cumsum(kept) - 1
    return _bundle(
        bundle.ids.numpy()[kept],
        bundle.positions.numpy()[kept],
        [place[padded_row] for padded_row in padded_rows],
        place[bundle.logit_positions.numpy()[chosen]],
        rows,
        bundle.targets.numpy()[chosen],
        bundle.tokens.numpy()[chosen],
    )
