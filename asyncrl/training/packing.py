"""Rollouts packed for forward passes. Invariant: a token stands after its own past and nothing
else, whatever shares its pass.

The samples of one forward pass are a `PackedBatch`. All its tokens stand one after another, without
padding. A prompt that several samples have stands there once, and each response once but for its
last token, which predicts nothing. That is what a model computes token by token.

Attention alone needs samples whole. For it they are rows of a few tables, and the rows of a table
are nearly as long as each other, so there is hardly any padding. It is on the right, where causal
attention never looks: no mask is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PACKED_TOKENS = 3072
"""Largest cost of a packed batch, in tokens, its rows counted with ROW_SHARE: so much stays in the
caches of a CPU core while it is worked on. Where twice the cost of the longest sample of the
micro-batch alone is more, it is that: its prompt is worth sharing, and there must be memory for it
anyway."""
ROW_SHARE = 0.25
"""Cost of a token in a row, as a share of its cost in the packed batch: query, key, value and
attention, of all in a layer."""
TABLE_TOKENS = 128
"""Cost of one more table of rows, in tokens of padding, measured on small models."""


class PackedBatch(NamedTuple):
    """Some samples of a micro-batch, for one forward pass.

    `ids`, `positions`: int64 [places], the id of each token, and its position in its sample; at the
    end a few places of no sample, so that there are few sizes (`missing_to_size`). `padded_rows`:
    tables of int64 [rows, width], in each row the places of one sample, right-padded.
    `unpack_index`: int64 [places], the index of each place in those tables, flattened and joined (a
    place of a shared prompt: in the first of its rows). Of each response token, int64 [tokens]:
    `logit_positions`, the place of the token before; `rows`, the row of its sample among those of
    all tables; `targets`, its id; `tokens`, its index among the micro-batch's response tokens.

    Two samples with the prompt 7 8, and the responses 1 2 and 3. The last token of a response
    stands nowhere, and the places are padded to 8:

    >>> ids = np.array([7, 8, 1, 2, 7, 8, 3], dtype=np.int32)
    >>> (packed,) = pack(ids, prompt_tokens=[2, 2], response_tokens=[2, 1], shared=True)
    >>> packed.ids.tolist(), packed.positions.tolist()
    ([7, 8, 1, 0, 0, 0, 0, 0], [0, 1, 2, 0, 0, 0, 0, 0])
    >>> [table.tolist() for table in packed.padded_rows]
    [[[0, 1, 0], [0, 1, 2]]]
    >>> packed.logit_positions.tolist(), packed.targets.tolist(), packed.tokens.tolist()
    ([1, 1, 2], [3, 1, 2], [2, 0, 1])
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
    """Padding that rounds `count` up to its size bucket: there are sixteen sizes between two powers
    of two, as oneDNN compiles kernels for each size and keeps them.

    >>> [count + missing_to_size(count) for count in (3, 100, 1000, 1025)]
    [8, 104, 1024, 1088]
    """
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
    return [_packed(ids, of, sharing) for sharing in _divided(alike.values(), of)]


def _divided(alike: Iterable[list[int]], of: _Samples) -> list[list[list[int]]]:
    """Samples of each packed batch, in lists with one prompt each. A list of `alike` is divided
    only where it costs too much for one packed batch."""
    row = of.response - 1 + ROW_SHARE * of.seen
    most = max(PACKED_TOKENS, 2 * float((of.prompt + row).max(initial=0)))
    divided: list[list[list[int]]] = []
    room = 0.0
    for samples in alike:
        prompt, whole = float(of.prompt[samples[0]]), float(row[samples].sum())
        if not divided or prompt + whole > room:
            divided.append([])
            room = most
        room -= prompt
        divided[-1].append([])
        for sample in samples:
            if row[sample] > room:
                divided.append([[]])
                room = most - prompt
            divided[-1][-1].append(sample)
            room -= float(row[sample])
    return divided


def _packed(ids: NDArray[np.int32], of: _Samples, sharing: list[list[int]]) -> PackedBatch:
    """Pack these samples, those of each inner list with one prompt."""
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
    return _padded(ids[sources].astype(np.int64), positions, padded_rows, *of_tokens)


def _ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """`sizes[i]` numbers counted up from `starts[i]`, for each i, joined."""
    return np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())


def _padded(
    ids: NDArray[np.int64],
    positions: NDArray[np.int64],
    padded_rows: Sequence[NDArray[np.int64]],
    *of_tokens: NDArray[np.int64],
) -> PackedBatch:
    """Make the packed batch of these places, padded to a size. `of_tokens`: `logit_positions`,
    `rows`, `targets` and `tokens`."""
    missing = missing_to_size(len(ids))
    unpack_index = np.zeros(len(ids) + missing, dtype=np.int64)
    joined = np.concatenate([table.ravel() for table in padded_rows])
    # backwards: of several rows with one place, the first is written last
    unpack_index[joined[::-1]] = np.arange(len(joined))[::-1]
    return PackedBatch(
        torch.from_numpy(np.pad(ids, (0, missing))),
        torch.from_numpy(np.pad(positions, (0, missing))),
        tuple(map(torch.from_numpy, padded_rows)),
        torch.from_numpy(unpack_index),
        *map(torch.from_numpy, of_tokens),
    )


def _cuts(lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Cut samples of ascending length into tables `[first, end)`, so that the sum of all their
    tokens and of TABLE_TOKENS for each is least (dynamic programming over the end of the last
    table; samples of one length stay together).

    >>> _cuts(np.array([10, 10, 11, 400]))
    [(0, 3), (3, 4)]
    """
    width, first_of = np.unique(lengths, return_index=True)
    starts = np.append(first_of, len(lengths))
    best, before = np.zeros(len(starts)), np.zeros(len(starts), dtype=np.int64)
    for end in range(1, len(starts)):
        cost = best[:end] + (starts[end] - starts[:end]) * width[end - 1]
        before[end] = np.argmin(cost)
        best[end] = cost[before[end]] + TABLE_TOKENS
    ends = [len(starts) - 1]
    while ends[-1]:
        ends.append(int(before[ends[-1]]))
    return [(int(starts[first]), int(starts[end])) for end, first in pairwise(ends)][::-1]


def part_of(packed: PackedBatch, wanted: Tensor) -> PackedBatch:
    """Pack the wanted response tokens alone (bool [tokens], at least one of them), without samples
    that have none of them."""
    chosen = wanted.numpy()
    needed, rows = np.unique(packed.rows.numpy()[chosen], return_inverse=True)
    padded_rows: list[NDArray[np.int64]] = []
    before = 0
    for table in packed.padded_rows:
        here = needed[(needed >= before) & (needed < before + len(table))] - before
        before += len(table)
        if len(here):
            padded_rows.append(table.numpy()[here])
    kept = np.zeros(len(packed.ids), dtype=bool)
    kept[np.concatenate([table.ravel() for table in padded_rows])] = True
    place = np.cumsum(kept) - 1
    return _padded(
        packed.ids.numpy()[kept],
        packed.positions.numpy()[kept],
        [place[table] for table in padded_rows],
        place[packed.logit_positions.numpy()[chosen]],
        rows,
        packed.targets.numpy()[chosen],
        packed.tokens.numpy()[chosen],
    )
