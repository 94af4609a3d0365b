"""Divergence of two policies, in all and by lag. Invariant: raw ratios, before any correction,
as sums that add up over batches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.ratios import LIMIT, ratio
from asyncrl.staleness.bins import BINS, at_lag


class Divergence(NamedTuple):
    """Sums over tokens (`tokens`, `log_abs`, `ratio`, `k3`, `ratio_squared`, `kept`: those that a
    correction keeps) and over rollouts that have one (`rollouts`, `weight`, `weight_squared`). The
    last three are all that the effective sample size needs, so over several trainers three scalars
    are reduced.

    Two rollouts of weights 1 and 3 count as 16 / 20 = 0.8 of two:

    >>> one = Divergence(tokens=4, rollouts=1, weight=1, weight_squared=1)
    >>> other = Divergence(tokens=2, rollouts=1, weight=3, weight_squared=9)
    >>> one.merge(other).ess
    0.8
    """

    tokens: float = 0.0
    log_abs: float = 0.0
    ratio: float = 0.0
    k3: float = 0.0
    rollouts: float = 0.0
    weight: float = 0.0
    weight_squared: float = 0.0
    ratio_squared: float = 0.0
    kept: float = 0.0

    def merge(self, other: Divergence) -> Divergence:
        """Add up both sets."""
        return Divergence(*(a + b for a, b in zip(self, other, strict=True)))

    def means(self) -> dict[str, float]:
        """Per token: `log_ratio_abs` mean |l|, `ratio_mean` mean e^l, `k3` mean of e^l - l - 1 (an
        estimate of the KL divergence of behaviour from current, >= 0), `chi2_token` mean of e^2l
        less 1 (an estimate of the chi-squared divergence). Over rollouts: `ess`, the effective
        sample size `(sum w)^2 / (B sum w^2)` in (0, 1], with w = exp(sum of l). 1 for the ratio and
        the sample size, and 0 for the rest, where there is no token."""
        if not self.tokens:
            return {
                "log_ratio_abs": 0.0,
                "ratio_mean": 1.0,
                "k3": 0.0,
                "chi2_token": 0.0,
                "ess": 1.0,
            }
        return {
            "log_ratio_abs": self.log_abs / self.tokens,
            "ratio_mean": self.ratio / self.tokens,
            "k3": self.k3 / self.tokens,
            "chi2_token": self.ratio_squared / self.tokens - 1,
            "ess": self.ess,
        }

    @property
    def ess(self) -> float:
        """Effective share of the rollouts; 1 where there is none."""
        return self.weight**2 / (self.rollouts * self.weight_squared) if self.rollouts else 1.0

    @property
    def kept_fraction(self) -> float:
        """Share of the tokens that the corrections keep; 1 where there is none."""
        return self.kept / self.tokens if self.tokens else 1.0


_FIELDS = Divergence._fields


class ByLag(NamedTuple):
    """Divergence for each bin of lags: `sums` is float64 [len(BINS), len(Divergence._fields)], on
    the device of the tokens, so that merging is one addition and several trainers reduce one
    tensor. A token is in the bin of its lag, a rollout in that of the largest lag among its tokens.

    One rollout, whose second token is of lag 3:

    >>> log, every = torch.tensor([0.0, 0.5]), torch.tensor([True, True])
    >>> found = by_lag(log, every, torch.tensor([0, 0]), torch.tensor([0, 3]), every)
    >>> [(lag, sums.tokens, sums.rollouts) for lag, sums in found.bins.items()]
    [(0, 1.0, 0.0), (3, 1.0, 1.0)]
    """

    sums: Tensor = torch.zeros(len(BINS), len(_FIELDS), dtype=torch.float64)

    def merge(self, other: ByLag) -> ByLag:
        """Add up both sets."""
        return ByLag(self.sums.to(other.sums.device) + other.sums)

    @property
    def total(self) -> Divergence:
        """Of all lags together."""
        return Divergence(*self.sums.sum(0).tolist())

    @property
    def bins(self) -> dict[int, Divergence]:
        """Of each bin that has a token, by the smallest lag in it."""
        return {
            lag: Divergence(*row)
            for lag, row in zip(BINS, self.sums.tolist(), strict=True)
            if row[0]
        }

    def metrics(self) -> dict[str, float]:
        """`tokens`, `log_ratio_abs`, `k3`, `chi2_token`, `kept_fraction` and, where it is the lag
        of a rollout, `rollouts` and `ess`; each as `asyncrl.staleness.bins.at_lag` names it."""
        values: dict[str, float] = {}
        for lag, sums in self.bins.items():
            means = sums.means()
            values |= {
                at_lag(name, lag): means[name] for name in ("log_ratio_abs", "k3", "chi2_token")
            }
            values |= {
                at_lag("tokens", lag): sums.tokens,
                at_lag("kept_fraction", lag): sums.kept_fraction,
            }
            if sums.rollouts:
                values |= {at_lag("rollouts", lag): sums.rollouts, at_lag("ess", lag): sums.ess}
        return values


def by_lag(
    log_ratio: Tensor, mask: Tensor, sample_index: Tensor, lag: Tensor, kept: Tensor
) -> ByLag:
    """Sums over the tokens of the mask, for each bin of lags.

    All are [tokens], at least one: `log_ratio` finite; `mask` and `kept` bool, `kept` being those
    of the mask that the corrections keep; `sample_index` int64 >= 0, a number for each rollout,
    whose tokens must all be here; `lag` int64 >= 0. Raises ValueError for a negative lag.
    """
    if bool((lag < 0).any()):
        raise ValueError(
            f"a token has a lag of {int(lag.min())}: it is newer than the policy that the step "
            "starts from"
        )
    device = log_ratio.device
    row = torch.bucketize(lag, torch.tensor(BINS, device=device), right=True) - 1
    log = torch.where(mask, log_ratio.detach(), 0.0).double()
    r, inside = ratio(log), mask.double()
    of_tokens = {
        "tokens": inside,
        "log_abs": log.abs(),
        "ratio": r * inside,
        "k3": r - log.clamp(-LIMIT, LIMIT) - 1,
        "ratio_squared": r.square() * inside,
        "kept": (kept & mask).double(),
    }
    rollouts = int(sample_index.max()) + 1
    zeros = torch.zeros(rollouts, dtype=torch.float64, device=device)
    present = (zeros.index_add(0, sample_index, inside) > 0).double()
    weight = ratio(zeros.index_add(0, sample_index, log)) * present
    oldest = torch.zeros(rollouts, dtype=torch.int64, device=device).scatter_reduce(
        0, sample_index, torch.where(mask, row, 0), "amax"
    )
    of_rollouts = {"rollouts": present, "weight": weight, "weight_squared": weight.square()}
    sums = torch.zeros(len(BINS), len(_FIELDS), dtype=torch.float64, device=device)
    for rows, values in ((row, of_tokens), (oldest, of_rollouts)):
        columns = torch.tensor([_FIELDS.index(name) for name in values], device=device)
        sums[:, columns] = sums[:, columns].index_add(
            0, rows, torch.stack(list(values.values()), 1)
        )
    return ByLag(sums)
