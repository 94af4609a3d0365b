"""KPop: a bound for the binary KL divergence of each token."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens
from asyncrl.staleness.corrections.correction import Corrected, Correction, keep_by_ratio

CERTAIN = 1e-6
"""Smallest distance of a probability from 1: float32 log-probabilities cannot resolve less, and the
divergence from 1 is infinite."""


class KPop(Correction, frozen=True):
    """Reject tokens where the binary KL divergence of the two policies, either way, is too large
    (Guo et al. 2026, "Taming training-inference mismatch with adaptive masking regions").

    A token is kept, and has its ratio as its weight, where `D(p, q) = p log(p/q) + (1 - p) log((1 -
    p)/(1 - q))` is at most `hi` nats both ways, with q the token's behaviour probability and `p = q
    exp(l)`. Probabilities are bounded at 1 - 1e-6 from above. The blog's weight is the ratio, as is
    that of AReaL and prime-rl.

    A likely token may change less than a rare one:

    >>> import math
    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[3.0, 3.0], behaviour=[math.log(0.2), math.log(0.001)])
    >>> KPop(hi=0.1).apply(some, some.mask).kept.tolist()
    [False, True]
    """

    kind: ClassVar[str] = "kpop"
    reads: ClassVar[frozenset[str]] = frozenset({"mismatch", "behaviour"})
    weighs_by_ratio: ClassVar[bool] = True

    hi: Annotated[
        float,
        Meta(gt=0, description="largest binary KL divergence of a token that is kept, in nats"),
    ] = 0.1

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        log = tokens.mismatch
        behaviour = tokens.behaviour.double()
        most = math.log1p(-CERTAIN)
        p, q = (behaviour + log).clamp(max=most), behaviour.clamp(max=most)
        kept = mask & (_binary_kl(p, q) <= self.hi) & (_binary_kl(q, p) <= self.hi)
        return keep_by_ratio(log, kept, {})


def _binary_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """`D(p, q)` of two log-probabilities under 0, in nats."""
    other_p, other_q = -log_p.expm1(), -log_q.expm1()
    return log_p.exp() * (log_p - log_q) + other_p * (other_p.log() - other_q.log())
