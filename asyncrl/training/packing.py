"""Sequences packed for forward passes. Invariant: a token follows its own past and nothing else,
whichever samples share its pass.

The samples of one forward pass are a `PackedBatch`: a prefix tree of them, whose places stand one
after another, without padding. A common prefix of samples is stored once, and the last token of
each is omitted, as it predicts nothing. A model computes these places token by token. Only
attention needs whole samples; it has tables of rows (`AttentionTable`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.training.even_packs import even_packs
from asyncrl.training.shown_images import ShownImages
from asyncrl.training.trees.attention_tables import AttentionTable, attention_tables
from asyncrl.training.trees.divided_places import Divided, divided_places
from asyncrl.training.trees.prefix_tree import Ints, PrefixTree, prefix_tree, ranges

PACKED_TOKENS = 3072
"""Largest cost of a packed batch, in tokens, its rows counted with QUERY_SHARE and KEY_SHARE: as
much as stays in the caches of a CPU core during a pass. It is twice the cost of the micro-batch's
longest sample where that is more, since there must be memory for it anyway."""
CUDA_TOKENS = 10_240
"""The same on a GPU: a micro-batch of 8,192 tokens whatever its lengths, or the longest sample. Its
caches hold no pass: weights and gradients go through its memory once a pass, in bfloat16 with
float32 gradients about 18 bytes of a parameter, for 6 operations with each token. An H100 does 295
of them in the time of a byte (989 TFLOP/s, 3.35 TB/s), so memory takes as long as they do at 900
tokens, and a ninth of it at 8,192. Activations grow with tokens, so it is not more. This was not
measured on a GPU yet."""
TREE_TOKENS = 8192
"""Largest cost of a packed batch where it would be divided deep inside a tree, so that the shared
part there is computed again: the default number of tokens of a micro-batch."""
REPEATED = 0.03
"""Largest share of a packed batch that is repeated in the next one, before the tree is kept
whole."""
QUERY_SHARE, KEY_SHARE = 0.15, 0.1
"""Costs of a query and of a key (and its value) in a row, as shares of a token's cost in the packed
batch: of all in a layer."""


class PackedBatch(NamedTuple):
    """Samples of a micro-batch for one forward pass.

    `tree`: those samples, without their last tokens. `ids`, `positions`, `ends`: of each of its
    places, int64 [places], the id, the position in its sample, and the place after the last that
    has it in its path; at the end a few places of no sample, so that there are few sizes
    (`missing_to_size`). `tables`: the attention of the tree. `unpack_index`: int64 [places], the
    index of each place among the queries of those tables, flattened and joined. Of each response
    token, int64 [tokens]: `logit_positions`, the place of the token before; `sequences`, its sample
    in the tree; `targets`, its id; `tokens`, its index among the micro-batch's response tokens.
    `recorded`: of each place the experts that it had when the token after it was sampled, int16
    [places, routers, experts of a token], -1 where unknown; None: nothing is known. `shown`: the
    images of its prompts, whose parts have negative ids; None: there are none. `divided`: how its
    places are divided over ranks, where this is the part of one (`own_part`); None: it is whole.

    Two samples with the prompt 7 8, and the responses 1 2 and 3. The last token of a response has
    no place, and the places are padded to 8:

    >>> ids = np.array([7, 8, 1, 2, 7, 8, 3], dtype=np.int32)
    >>> (packed,) = pack(ids, prompt_tokens=[2, 2], response_tokens=[2, 1], shared=True)
    >>> packed.ids.tolist(), packed.positions.tolist(), packed.ends.tolist()
    ([7, 8, 1, 0, 0, 0, 0, 0], [0, 1, 2, 0, 0, 0, 0, 0], [3, 3, 3, 4, 5, 6, 7, 8])
    >>> packed.logit_positions.tolist(), packed.targets.tolist(), packed.tokens.tolist()
    ([1, 1, 2], [3, 1, 2], [2, 0, 1])
    """

    tree: PrefixTree
    ids: Tensor
    positions: Tensor
    ends: Tensor
    tables: tuple[AttentionTable, ...]
    unpack_index: Tensor
    logit_positions: Tensor
    sequences: Tensor
    targets: Tensor
    tokens: Tensor
    recorded: Tensor | None = None
    shown: ShownImages | None = None
    divided: Divided | None = None


def missing_to_size(count: int) -> int:
    """Padding that rounds `count` up to its size bucket: there are sixteen sizes between two powers
    of two, as oneDNN compiles kernels for each size and keeps them.

    >>> [count + missing_to_size(count) for count in (3, 100, 1000, 1025)]
    [8, 104, 1024, 1088]
    """
    return -count % max(8, 1 << count.bit_length() >> 5)


def pack(
    ids: NDArray[np.int32],
    prompt_tokens: Sequence[int],
    response_tokens: Sequence[int],
    *,
    shared: bool,
    device: str = "cpu",
    ranks: int = 1,
) -> list[PackedBatch]:
    """Lay out samples: `ids` has, for each, its prompt (at least one token) and then its response.
    A common prefix is `shared`, or stored for each sample. Each sample is whole in one packed
    batch, of a size for this type of `device`, and for so many `ranks` to share. Raises ValueError
    where lengths and ids disagree or a prompt is empty."""
    prompts, responses = (
        np.asarray(prompt_tokens, dtype=np.int64),
        np.asarray(response_tokens, dtype=np.int64),
    )
    lengths = prompts + responses
    if len(ids) != lengths.sum():
        raise ValueError(f"{len(ids)} token ids came for samples of {lengths.sum()} tokens in all")
    if (prompts < 1).any():
        raise ValueError(
            "a sample has an empty prompt: its first response token could not be predicted"
        )
    answering = np.flatnonzero(responses)
    if not len(answering):
        return []
    starts, answers = np.cumsum(lengths) - lengths, np.cumsum(responses) - responses
    seen = [
        ids[start:end]
        for start, end in zip(
            starts[answering].tolist(), (starts + lengths - 1)[answering].tolist(), strict=True
        )
    ]
    tree, of = prefix_tree(seen, shared=shared)
    by_sequence = np.argsort(of, kind="stable")
    ordered = answering[by_sequence]
    counts = responses[ordered]
    sequences = np.repeat(of[by_sequence], counts)
    positions = ranges(prompts[ordered] - 1, counts)
    targets = ids[ranges((starts + prompts)[ordered], counts)].astype(np.int64)
    tokens = ranges(answers[ordered], counts)
    packed, divisions = [], _divided(tree, device, ranks)
    for members, part in zip(divisions, tree.parts(divisions), strict=True):
        begins = np.searchsorted(sequences, members)  # ascending, as the tree has them
        sizes = np.searchsorted(sequences, members, "right") - begins
        inside = ranges(begins, sizes)
        packed.append(
            _packed(
                part,
                np.repeat(np.arange(len(members)), sizes),
                positions[inside],
                targets[inside],
                tokens[inside],
            )
        )
    return packed


def pass_tokens(device: str, longest: float) -> float:
    """Largest cost of a packed batch on this type of device, where the longest sample has that cost
    by itself.

    >>> [pass_tokens(device, longest) for device in ("cpu", "cuda") for longest in (100, 11000)]
    [3072, 22000, 10240, 11000]
    """
    return max(CUDA_TOKENS, longest) if device == "cuda" else max(PACKED_TOKENS, 2 * longest)


def _divided(tree: PrefixTree, device: str, ranks: int) -> list[Ints]:
    """The sequences of each packed batch, ascending. For several ranks they cost about as much as
    each other (`even_packs`); for one they are neighbours. A tree (sequences with a common prefix)
    starts a new batch if it fits there whole, but not in this one. Otherwise a tree is divided
    where it costs too much for one batch, with the shared part in both."""
    keys = KEY_SHARE * tree.length
    alone, cost = (
        (1 + QUERY_SHARE) * own + keys for own in (tree.length, tree.length - tree.shared)
    )
    most = pass_tokens(device, float(alone.max()))
    roots = np.flatnonzero(tree.shared == 0)
    if ranks > 1:
        return even_packs(cost.tolist(), alone.tolist(), roots.tolist(), ranks, most)
    whole = dict(zip(roots.tolist(), np.add.reduceat(cost, roots).tolist(), strict=True))
    begins, used = [0], 0.0
    for sequence, (shared, adds) in enumerate(
        zip(tree.shared.tolist(), cost.tolist(), strict=True)
    ):
        full = used + adds > (most if shared <= REPEATED * most else max(most, TREE_TOKENS))
        if sequence and (full or used + whole.get(sequence, -used) > most):
            begins.append(sequence)
            used, adds = 0.0, float(alone[sequence])
        used += adds
    return [np.arange(*each) for each in pairwise([*begins, len(tree.length)])]


def _packed(
    tree: PrefixTree, sequences: Ints, positions: Ints, targets: Ints, tokens: Ints
) -> PackedBatch:
    """The packed batch of a tree. Of each response token: its sequence, the position there of the
    token before, its id, and its index."""
    missing = missing_to_size(len(tree.ids))
    tables, home = attention_tables(tree)
    paths = tree.paths()
    starts = np.cumsum(tree.length) - tree.length
    places = np.concatenate(paths)[starts[sequences] + positions]
    size = len(tree.ids)
    return PackedBatch(
        tree,
        torch.from_numpy(np.pad(tree.ids, (0, missing))),
        torch.from_numpy(np.pad(tree.positions(), (0, missing))),
        torch.from_numpy(np.append(tree.ends(), np.arange(size, size + missing) + 1)),
        tables,
        torch.from_numpy(np.pad(home, (0, missing))),
        torch.from_numpy(places),
        torch.from_numpy(sequences),
        torch.from_numpy(targets),
        torch.from_numpy(tokens),
    )


def cost(packed: PackedBatch) -> float:
    """Cost of a packed batch's passes, in tokens: its places and its rows (QUERY_SHARE,
    KEY_SHARE)."""
    return (1 + QUERY_SHARE) * len(packed.ids) + KEY_SHARE * float(packed.tree.length.sum())


def part_of(packed: PackedBatch, wanted: Tensor) -> PackedBatch:
    """Pack only the wanted response tokens (bool [tokens], at least one), without samples that have
    none."""
    chosen = wanted.numpy()
    needed, sequences = np.unique(packed.sequences.numpy()[chosen], return_inverse=True)
    places = packed.logit_positions.numpy()[chosen]
    part = _packed(
        packed.tree.part(needed),
        sequences,
        packed.positions.numpy()[places],
        packed.targets.numpy()[chosen],
        packed.tokens.numpy()[chosen],
    )
    if packed.recorded is None and packed.shown is None:
        return part
    before, after = packed.tree.paths(), part.tree.paths()
    if packed.shown is not None:
        moved = [(after[number], before[s]) for number, s in enumerate(needed.tolist())]
        part = part._replace(shown=packed.shown.moved(moved, len(part.ids)))
    if packed.recorded is None:
        return part
    recorded = packed.recorded.new_full((len(part.ids), *packed.recorded.shape[1:]), -1)
    for number, sequence in enumerate(needed.tolist()):
        recorded[after[number]] = packed.recorded[before[sequence]]
    return part._replace(recorded=recorded)


def with_recorded(packed: PackedBatch, experts: Tensor) -> PackedBatch:
    """The packed batch with the recorded experts of all sampled tokens of its micro-batch, int16
    [tokens, routers, experts of a token]. Of a place that several samples share, one counts."""
    recorded = experts.new_full((len(packed.ids), *experts.shape[1:]), -1)
    recorded[packed.logit_positions] = experts[packed.tokens]
    return packed._replace(recorded=recorded)


def own_part(packed: PackedBatch, index: int, ranks: int) -> tuple[PackedBatch, Tensor]:
    """The part of a packed batch that rank `index` of some computes, its places and the response
    tokens that these predict; and the indexes of those tokens (int64) among all of it. The keys of
    its tables, and its `ends`, are of all places.

    >>> ids = np.arange(7, 16, dtype=np.int32)
    >>> (packed,) = pack(ids, prompt_tokens=[2], response_tokens=[7], shared=True)
    >>> for index in (0, 1):
    ...     part, tokens = own_part(packed, index, 2)
    ...     part.positions.tolist(), part.logit_positions.tolist(), tokens.tolist()
    ([0, 1, 6, 7], [1, 2, 3], [0, 5, 6])
    ([2, 3, 4, 5], [0, 1, 2, 3], [1, 2, 3, 4])
    """
    divided = divided_places(len(packed.ids), index, ranks)
    own, missing = divided.own, len(divided.order) - len(packed.ids)
    tables, home = attention_tables(packed.tree, own.numpy())
    chosen = torch.nonzero(torch.isin(packed.logit_positions, own))[:, 0]
    ends = torch.arange(len(packed.ids), len(divided.order)) + 1
    part = packed._replace(
        ids=F.pad(packed.ids, (0, missing))[own],
        positions=F.pad(packed.positions, (0, missing))[own],
        ends=torch.cat([packed.ends, ends]),
        tables=tables,
        unpack_index=torch.from_numpy(home),
        logit_positions=torch.searchsorted(own, packed.logit_positions[chosen]),
        sequences=packed.sequences[chosen],
        targets=packed.targets[chosen],
        tokens=packed.tokens[chosen],
        divided=divided,
    )
    return part, chosen
