"""How much a token counts. Invariant: a weight is a bounded ratio of policies or a function of age,
has no gradient, and rejects nothing.

All take `tokens` and the mask left by the corrections before, and keep that mask. Exponents are
clamped to [-20, 20].
"""

from __future__ import annotations

import torch
from torch import Tensor

from staleness.ratios import ratio
from staleness.tokens import Correction, Tokens, sum_by_rollout


def token_tis(tokens: Tokens, mask: Tensor, *, hi: float) -> Correction:
    """Truncated importance sampling of tokens: `min(exp(l), hi)`, in (0, hi], `hi` >= 1 (as in
    IMPALA, arXiv 1802.01561; verl)."""
    return _bounded(ratio(tokens.log_ratio.detach()), mask, 0.0, hi)


def sequence_tis(tokens: Tokens, mask: Tensor, *, hi: float) -> Correction:
    """Truncated importance sampling of rollouts: `min(exp(sum l), hi)` on every token of the
    rollout, in (0, hi], `hi` >= 1 (VCPO, arXiv 2602.17616, has hi = 8). The sum is over the mask.
    """
    total = sum_by_rollout(tokens.log_ratio.detach(), mask, tokens.sample_index).total
    return _bounded(ratio(total)[tokens.sample_index], mask, 0.0, hi)


def geometric_tis(tokens: Tokens, mask: Tensor, *, lo: float, hi: float) -> Correction:
    """The geometric mean of the rollout's ratios, `exp(mean l)` over the mask, truncated to [lo,
    hi] with `lo` <= 1 <= `hi`. It does not grow with length, as the product does."""
    mean = sum_by_rollout(tokens.log_ratio.detach(), mask, tokens.sample_index).mean
    return _bounded(ratio(mean)[tokens.sample_index], mask, lo, hi)


def age_decay(tokens: Tokens, mask: Tensor, *, gamma: float) -> Correction:
    """`gamma ** lag`, in (0, 1], `gamma` in (0, 1] (of the family of staleness functions of
    FedAsync, arXiv 1903.03934)."""
    weight = torch.where(mask, gamma ** tokens.lag.double(), 0.0)
    return Correction(weight.float(), mask, {})


def _bounded(raw: Tensor, mask: Tensor, lo: float, hi: float) -> Correction:
    """`truncated`: tokens whose weight a bound has changed."""
    weight = torch.where(mask, raw.clamp(lo, hi), 0.0)
    return Correction(weight.float(), mask, {"truncated": (mask & ((raw < lo) | (raw > hi))).sum()})
