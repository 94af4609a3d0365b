"""Response tokens of some whole rollouts, as input of corrections and objectives.

Everything is a tensor of shape [tokens], and token t is the same one in each of them. Only methods
of tensors are called here, so that importing this needs no torch.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncrl.algorithms.tensors import Tensor


class Tokens(NamedTuple):
    """Response tokens, each field a tensor of shape [tokens]; all tokens of a rollout are in one
    call.

    `log_ratio`: float32 `current - proximal`, finite, with the gradient of `current`. The objective
    bounds it. `mismatch`: float32 `proximal - behaviour`, finite. Corrections correct for it. Where
    there is no proximal policy, both are `current - behaviour` (see `proximal.log_ratios`).
    `current`, `behaviour`: float32 log-probabilities, read inside of the mask alone; `current` has
    its gradient. `advantage`: float32. `lag`: int64 >= 0, versions. `sample_index`: int64 >= 0, a
    number for each rollout, in any order. `mask`: bool, the tokens that count. For a correction
    those that may enter the loss, for an objective those that the corrections kept. `entropy`:
    float32 >= 0 in nats, of the current policy's distribution for the token; None where no
    correction reads it. `turn`: int64 >= 0, the token's turn in its episode, 0 where no agent
    played. `own`: bool, False for foreign tokens. The learner gives these two always.

    Two rollouts, of two tokens and of one; the second token of the first is stale:

    >>> import torch
    >>> zero = torch.zeros(3)
    >>> tokens = Tokens(
    ...     log_ratio=zero,
    ...     mismatch=torch.tensor([0.5, 9.0, -1.0]),
    ...     current=zero,
    ...     behaviour=zero,
    ...     advantage=torch.tensor([1.0, 1.0, -1.0]),
    ...     lag=torch.tensor([0, 7, 0]),
    ...     sample_index=torch.tensor([0, 0, 1]),
    ...     mask=torch.tensor([True, False, True]),
    ... )
    >>> sum_by_rollout(tokens.mismatch, tokens.mask, tokens.sample_index).total.tolist()
    [0.5, -1.0]
    """

    log_ratio: Tensor
    mismatch: Tensor
    current: Tensor
    behaviour: Tensor
    advantage: Tensor
    lag: Tensor
    sample_index: Tensor
    mask: Tensor
    entropy: Tensor | None = None
    turn: Tensor | None = None
    own: Tensor | None = None


class RolloutSums(NamedTuple):
    """Sums over each rollout's tokens in a mask: `total`, float64 [rollouts], of their values, and
    `tokens`, float64 [rollouts], their numbers.

    >>> import torch
    >>> RolloutSums(torch.tensor([6.0, 0.0]), torch.tensor([3.0, 0.0])).mean.tolist()
    [2.0, 0.0]
    """

    total: Tensor
    tokens: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean value of a token, float64 [rollouts]; 0 for a rollout without a token in the
        mask."""
        return self.total / self.tokens.clamp(min=1)


def sum_by_rollout(values: Tensor, mask: Tensor, sample_index: Tensor) -> RolloutSums:
    """Sum `values` (finite inside of the mask) over the mask, one sum for each number up to the
    largest `sample_index`. The sums carry the gradient of `values`."""
    rollouts = int(sample_index.max()) + 1 if sample_index.numel() else 0
    inside = values.where(mask, 0.0).double()
    zeros = inside.new_zeros(rollouts)
    return RolloutSums(
        zeros.index_add(0, sample_index, inside), zeros.index_add(0, sample_index, mask.double())
    )


def count_rollouts(mask: Tensor, sample_index: Tensor) -> Tensor:
    """Count the rollouts with a token in the mask; a scalar.

    >>> import torch
    >>> count_rollouts(torch.tensor([True, True, False]), torch.tensor([4, 4, 2])).item()
    1
    """
    return (sum_by_rollout(mask.double(), mask, sample_index).tokens > 0).sum()
