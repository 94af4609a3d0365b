"""Masked importance sampling of rollouts."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens, sum_by_rollout
from asyncrl.staleness.corrections.correction import (
    Corrected,
    Correction,
    keep_by_ratio,
    keep_rollouts,
)


class Mis(Correction, frozen=True):
    """Reject rollouts whose product of ratios leaves the band: a rollout is kept, and all its
    tokens have `exp(sum l)` as their weight, where `lo <= exp(sum l) <= hi` (verl's sequence-level
    rejection by ratio, with the bounds of its documentation). Diagnostics: `rollouts` rejected.

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[3.0, 0.5, 4.0], sample_index=[0, 0, 1])
    >>> Mis(lo=0.5, hi=2.0).apply(some, some.mask).weight.tolist()
    [1.5, 1.5, 0.0]
    """

    kind: ClassVar[str] = "mis"
    reads: ClassVar[frozenset[str]] = frozenset({"mismatch"})
    by_rollout: ClassVar[bool] = True
    weighs_by_ratio: ClassVar[bool] = True
    band: ClassVar[bool] = True
    bounds_ratio: ClassVar[bool] = True

    lo: Annotated[
        float, Meta(gt=0, le=1, description="smallest product of a rollout's ratios that is kept")
    ] = 0.5
    hi: Annotated[
        float, Meta(ge=1, description="largest product of a rollout's ratios that is kept")
    ] = 2.0

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        total = sum_by_rollout(tokens.mismatch, mask, tokens.sample_index).total
        inside = (total >= math.log(self.lo)) & (total <= math.log(self.hi))
        return keep_by_ratio(total[tokens.sample_index], *keep_rollouts(inside, tokens, mask))
