"""Estimates of the divergence from another policy, token by token. Invariant: at a ratio of 1 each
estimate and its gradient are 0, except for the gradient of `k1`.

With `l = current - other`, log-probabilities of a token that the current policy sampled, all of
these have (k2: nearly) the mean KL(current, other). Their gradients differ, and a loss follows the
gradient:
- `k1 = l`. Its gradient is that of `current` alone, whose mean is 0: in a loss it has no effect but
  noise. In a reward or an advantage it is correct.
- `k2 = l^2 / 2`. Its gradient is `l` times that of `current`, whose mean is the gradient of
  KL(current, other).
- `k3 = exp(-l) - 1 + l` (GRPO's, arXiv 2402.03300, equation 4). Its gradient is `1 - exp(-l)` times
  that of `current`, whose mean is the gradient of KL(other, current), the reverse divergence:
  biased, and weak where the other policy gives the token a lower probability.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from asyncrl.algorithms.ratios import ratio
from asyncrl.algorithms.tensors import Tensor

Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(estimator: Estimator, log_ratio: Tensor) -> Tensor:
    """The estimate of each token, with the gradient of `log_ratio`, finite float32 [tokens] of
    current over other policy.

    >>> import torch
    >>> log_ratio = torch.tensor([0.0, 2.0])
    >>> [[round(v, 3) for v in kl_estimate(k, log_ratio).tolist()] for k in ("k1", "k2", "k3")]
    [[0.0, 2.0], [0.0, 2.0], [0.0, 1.135]]
    """
    return _ESTIMATES[estimator](log_ratio)


def _k1(log_ratio: Tensor) -> Tensor:
    return log_ratio


def _k2(log_ratio: Tensor) -> Tensor:
    return log_ratio.square() / 2


def _k3(log_ratio: Tensor) -> Tensor:
    return ratio(-log_ratio) - 1 + log_ratio


_ESTIMATES: Mapping[str, Callable[[Tensor], Tensor]] = {"k1": _k1, "k2": _k2, "k3": _k3}
