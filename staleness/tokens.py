"""What a correction is given and what it gives. Invariant: what is said of a rollout is said of its
tokens in the mask alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Tokens(NamedTuple):
    """Response tokens, as tensors of shape [tokens] without a gradient; all the tokens of a rollout
    are in one call.

    `log_ratio`: float32, what the corrections correct for: `proximal - behaviour`, or `current -
    behaviour` where there is no proximal policy. Finite (see `ratios.log_ratio`). `mask`: bool, the
    tokens that may enter the loss: not stale, and with finite log-probabilities. `sample_index`: int64 >=
    0, a number for each rollout, in any order. `advantage`: float32. `behaviour`, `current`:
    float32 log-probabilities, read inside of the mask alone. `lag`: int64 >= 0, versions.
    """

    log_ratio: Tensor
    mask: Tensor
    sample_index: Tensor
    advantage: Tensor
    behaviour: Tensor
    current: Tensor
    lag: Tensor


class Correction(NamedTuple):
    """`weight`: float32 [tokens], without a gradient, 0 where not kept. `kept`: bool [tokens], a
    subset of the mask given. `diagnostics`: sums over the call as scalar tensors, to be added up
    over calls."""

    weight: Tensor
    kept: Tensor
    diagnostics: dict[str, Tensor]


class RolloutSums(NamedTuple):
    """Each rollout's tokens in a mask: `total`, float64 [rollouts], the sum of their values, and
    `tokens`, how many they are."""

    total: Tensor
    tokens: Tensor

    @property
    def mean(self) -> Tensor:
        """float64 [rollouts]; 0 for a rollout without a token in the mask."""
        return self.total / self.tokens.clamp(min=1)


def sum_by_rollout(values: Tensor, mask: Tensor, sample_index: Tensor) -> RolloutSums:
    """Sums of `values` (finite inside of the mask) over the mask, one for each number up to the
    largest `sample_index`. The sums carry the gradient of `values`."""
    rollouts = int(sample_index.max()) + 1 if sample_index.numel() else 0
    zeros = torch.zeros(rollouts, dtype=torch.float64, device=values.device)
    inside = torch.where(mask, values, 0.0).double()
    return RolloutSums(
        zeros.index_add(0, sample_index, inside), zeros.index_add(0, sample_index, mask.double())
    )


def count_rollouts(mask: Tensor, sample_index: Tensor) -> Tensor:
    """Number of rollouts with a token in the mask, a scalar."""
    return (sum_by_rollout(mask.double(), mask, sample_index).tokens > 0).sum()
