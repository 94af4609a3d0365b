"""Learning at high lag (VCPO, arXiv 2602.17616).

With heavy importance weights few rollouts make the gradient. The step is then shortened by what is
left of the sample size, and each group is compared with the baseline of least variance
(`asyncrl.algorithms.advantages.min_variance`), whose approximation is measured here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

CHUNK = 2**22
"""Largest number of logits that are turned into float32 at a time: 16 MiB."""


def learning_rate_scale(ess: float, base: float) -> float:
    """Factor `sqrt(min(1, ess / base))` of the learning rate, in [0, 1]. `ess` is the sequence
    effective sample size of the step's raw weights, as a share of its rollouts, in (0, 1]; `base`
    in [0, 1] is what is normal. Base 0: always 1.

    >>> learning_rate_scale(ess=0.09, base=0.36)
    0.5
    """
    return 1.0 if base == 0 else math.sqrt(min(1.0, ess / base))


def squared_norms(token_norm: Tensor, mask: Tensor, sample_index: Tensor, samples: int) -> Tensor:
    """Sum `logit_norm` over each sample's tokens of the mask, float64 [samples]: in place of the
    squared norm of its gradient, without a backward pass for each rollout.

    `token_norm` (float32), `mask` (bool) and `sample_index` (int64, below `samples`) are [tokens].

    >>> norm, mask = torch.tensor([1.0, 0.5, 2.0]), torch.tensor([True, True, False])
    >>> squared_norms(norm, mask, torch.tensor([0, 0, 1]), 2).tolist()
    [1.5, 0.0]
    """
    norms = torch.zeros(samples, dtype=torch.float64, device=token_norm.device)
    return norms.index_add(0, sample_index, torch.where(mask, token_norm, 0.0).double())


@torch.no_grad()
def logit_norm(logits: Tensor, ids: Tensor) -> Tensor:
    """`1 - 2 p + sum over v of p_v^2`, float32 [tokens]: the squared norm of the gradient of each
    token's log-probability with respect to its logits, in [0, 2]. `logits` is [tokens, vocabulary],
    of any float type, already divided by the temperature; `ids` is int64 [tokens].
    """
    rows = max(1, CHUNK // logits.shape[-1])
    return torch.cat(
        [
            _logit_norm(some, of_some)
            for some, of_some in zip(torch.split(logits, rows), torch.split(ids, rows), strict=True)
        ]
    )


def _logit_norm(logits: Tensor, ids: Tensor) -> Tensor:
    # (1 - p)^2 + the others' squares is the same sum without a difference of nearly equal numbers,
    # which at p near 1 is all that is left.
    others = torch.softmax(logits, -1, dtype=torch.float32).scatter_(1, ids[:, None], 0.0)
    rest = others.sum(-1)
    return (rest.square() + others.square_().sum(-1)).clamp_(
        max=2.0
    )  # probabilities in float32 may sum to a little over 1
