"""How far apart two policies are. Invariant: raw ratios, before any correction, as sums that add up over micro-batches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from staleness.ratios import LIMIT, ratio


class Divergence(NamedTuple):
    """Sums over tokens (`tokens`, `log_abs`, `ratio`, `k3`) and over rollouts that have one (`rollouts`, `weight`, `weight_squared`)."""

    tokens: float = 0.0
    log_abs: float = 0.0
    ratio: float = 0.0
    k3: float = 0.0
    rollouts: float = 0.0
    weight: float = 0.0
    weight_squared: float = 0.0

    def merge(self, other: Divergence) -> Divergence:
        """The sums of both sets."""
        return Divergence(*(a + b for a, b in zip(self, other, strict=True)))

    def means(self) -> dict[str, float]:
        """Per token: `log_ratio_abs` mean |l|, `ratio_mean` mean e^l, `k3` mean of e^l - l - 1 (an estimate of the KL divergence of
        behaviour from current, >= 0). Over rollouts: `ess`, the effective sample size `(sum w)^2 / (B sum w^2)` in (0, 1], with
        w = exp(sum of l). 1 for the ratio and the sample size, and 0 for the rest, where there is no token."""
        if not self.tokens:
            return {"log_ratio_abs": 0.0, "ratio_mean": 1.0, "k3": 0.0, "ess": 1.0}
        return {
            "log_ratio_abs": self.log_abs / self.tokens,
            "ratio_mean": self.ratio / self.tokens,
            "k3": self.k3 / self.tokens,
            "ess": self.weight**2 / (self.rollouts * self.weight_squared),
        }


def divergence(log_ratio: Tensor, mask: Tensor, owner: Tensor) -> Divergence:
    """Sums over the tokens of the mask. `log_ratio`, `mask` (bool) and `owner` (int64 >= 0, a number for each rollout) are [tokens], at
    least one; the tokens of a rollout must all be here."""
    log = torch.where(mask, log_ratio.detach(), 0.0).double()
    r, bounded, inside = ratio(log), log.clamp(-LIMIT, LIMIT), mask.double()
    sums = torch.zeros(int(owner.max()) + 1, dtype=torch.float64, device=log.device)
    present = sums.index_add(0, owner, inside) > 0
    weight = ratio(sums.index_add(0, owner, log)) * present
    values = (
        inside.sum(),
        log.abs().sum(),
        (r * inside).sum(),
        (r - bounded - 1).sum(),
        present.sum(),
        weight.sum(),
        weight.square().sum(),
    )
    return Divergence(*(float(value) for value in values))
