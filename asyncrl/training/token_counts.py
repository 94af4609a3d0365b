"""Counts of what a step did with sampled tokens, and the places of those that it left out.

Invariant: tensors count and find the tokens; Python sees at most `STRETCHES` places of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.messages import Sample, TokenCount

STRETCHES = 64
"""Stretches of tokens that were left out that are told of one sequence, at most: its first ones."""

Places = dict[str, list[tuple[int, int]]]


def token_counts(
    samples: Sequence[Sample], sample_index: Tensor, outcome: Tensor, reasons: Sequence[str]
) -> list[TokenCount]:
    """Count each sample's tokens by their `outcome` (int64 [tokens]), an index of `reasons`, of
    which the first means trained. The samples' tokens are one after another."""
    table = torch.zeros(len(samples), len(reasons), dtype=torch.int64)
    table.index_put_((sample_index, outcome), torch.ones_like(outcome), accumulate=True)
    places = _places(len(samples), sample_index, outcome, reasons)
    return [
        TokenCount(
            sample.rollout,
            row[0],
            {reason: count for reason, count in zip(reasons[1:], row[1:], strict=True) if count},
            sample.strand,
            found,
        )
        for sample, row, found in zip(samples, table.tolist(), places, strict=True)
    ]


def _places(
    samples: int, sample_index: Tensor, outcome: Tensor, reasons: Sequence[str]
) -> list[Places]:
    """Of each sample, the stretches of its tokens that were left out, by reason."""
    found: list[Places] = [{} for _ in range(samples)]
    if not outcome.any():
        return found
    key = torch.stack((sample_index, outcome))
    begins = torch.ones_like(outcome, dtype=torch.bool)
    begins[1:] = (key[:, 1:] != key[:, :-1]).any(dim=0)
    starts = begins.nonzero().flatten()
    ends = torch.cat((starts[1:], starts.new_tensor([len(outcome)])))
    left = outcome[starts] != 0
    starts, ends = starts[left], ends[left]
    owner = sample_index[starts]
    few = torch.arange(len(owner)) - torch.searchsorted(owner, owner) < STRETCHES
    starts, ends, owner = starts[few], ends[few], owner[few]
    first = torch.searchsorted(sample_index, owner)
    rows = torch.stack((owner, outcome[starts], starts - first, ends - first), dim=1)
    for sample, reason, start, end in rows.tolist():
        found[sample].setdefault(reasons[reason], []).append((start, end))
    return found
