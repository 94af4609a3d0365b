"""Ratios of policies that cannot overflow. Invariant: non-finite values are replaced before `exp`,
and exponents are in [-20, 20].

Log-ratios are `current - behaviour`, float32, one for each response token, both at the sampling
temperature. Only methods of tensors are called here, so that importing this needs no torch.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncrl.algorithms.tensors import Tensor

LIMIT = 20.0
"""Largest exponent, either sign: e^20 is 4.9e8, whose square still fits a float32."""


class LogRatio(NamedTuple):
    """`value`: float32 [tokens], 0 where not finite, carrying the gradient of `current`. `finite`:
    bool [tokens].

    >>> import torch
    >>> found = log_ratio(torch.tensor([-1.0, float("nan")]), torch.tensor([-1.5, -1.0]))
    >>> found.value.tolist(), found.finite.tolist()
    ([0.5, 0.0], [True, False])
    """

    value: Tensor
    finite: Tensor


def log_ratio(current: Tensor, behaviour: Tensor) -> LogRatio:
    """Log-ratio of two policies' log-probabilities of the same tokens, both [tokens]. A token where
    either is NaN or infinite has the value 0 and the gradient 0."""
    current, behaviour = current.float(), behaviour.float()
    finite = current.isfinite() & behaviour.isfinite()
    # Both sides are replaced before the difference: `where` after it would send 0 * inf = NaN back
    # through it.
    return LogRatio(current.where(finite, 0.0) - behaviour.where(finite, 0.0), finite)


def ratio(log: Tensor) -> Tensor:
    """`exp(log)`, with the exponent clamped to [-20, 20]."""
    return log.clamp(-LIMIT, LIMIT).exp()
