"""What is minimized, per token. Invariant: an objective returns one loss a token and reduces nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from staleness.ratios import ratio


class Objective(NamedTuple):
    """`loss`: float32 [tokens], carrying the gradient. `clipped`: bool [tokens], where the clip stops the gradient."""

    loss: Tensor
    clipped: Tensor


def clipped(log_ratio: Tensor, advantage: Tensor, *, lo: float, hi: float) -> Objective:
    """Clipped surrogate `-min(r A, clip(r, 1 - lo, 1 + hi) A)` with `r = exp(log_ratio)` (PPO, arXiv 1707.06347, eq. 7; asymmetric
    bounds as in DAPO, arXiv 2503.14476, eq. 8).

    Both inputs are [tokens]. The two-policy form: the proximal policy is the behaviour policy, `log_ratio = current - behaviour`.
    """
    r = ratio(log_ratio)
    bounded = r.clamp(1 - lo, 1 + hi)
    surrogate, limit = r * advantage, bounded * advantage
    return Objective(-torch.minimum(surrogate, limit), (limit < surrogate).detach())
