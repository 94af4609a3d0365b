"""A bound for the KL divergence of each rollout."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.ratios import LIMIT
from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens, sum_by_rollout
from asyncrl.staleness.corrections.correction import Corrected, Correction, keep, keep_rollouts


class K3(Correction, frozen=True):
    """Reject rollouts whose mean k3, an estimate of the KL divergence, is too large.

    A rollout is kept where the mean of `exp(l) - l - 1`, an estimate of the KL divergence of
    behaviour from proximal policy (Schulman 2020, "Approximating KL divergence"), is at most `hi`
    nats (verl). Diagnostics: `rollouts` rejected.

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[1.0, 1.1, 2.0], sample_index=[0, 0, 1])
    >>> K3(hi=0.01).apply(some, some.mask).kept.tolist()
    [True, True, False]
    """

    kind: ClassVar[str] = "k3"
    reads: ClassVar[frozenset[str]] = frozenset({"mismatch"})
    by_rollout: ClassVar[bool] = True
    bounds_ratio: ClassVar[bool] = True

    hi: Annotated[
        float,
        Meta(
            gt=0, description="largest mean of r - log r - 1 over a rollout that is kept, in nats"
        ),
    ] = 0.01

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        log = tokens.mismatch.double().clamp(-LIMIT, LIMIT)
        mean = sum_by_rollout(log.expm1() - log, mask, tokens.sample_index).mean
        return keep(*keep_rollouts(mean <= self.hi, tokens, mask))
