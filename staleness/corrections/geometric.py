"""The geometric mean of a rollout's ratios, as a weight and as a mask. It does not grow with
length, as the product does."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.ratios import ratio
from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens, sum_by_rollout
from asyncrl.staleness.corrections.correction import (
    Corrected,
    Correction,
    keep,
    keep_rollouts,
    truncate,
)


class GeometricTis(Correction, frozen=True):
    """Weigh each rollout by the geometric mean of its ratios, `exp(mean l)` over the mask,
    truncated to [lo, hi].

    The means of the two rollouts are 2 and 0.25:

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[4.0, 1.0, 0.25], sample_index=[0, 0, 1])
    >>> GeometricTis(lo=0.5, hi=3.0).apply(some, some.mask).weight.tolist()
    [2.0, 2.0, 0.5]
    """

    kind: ClassVar[str] = "geometric_tis"
    reads: ClassVar[frozenset[str]] = frozenset({"mismatch"})
    by_rollout: ClassVar[bool] = True
    weighs_by_ratio: ClassVar[bool] = True
    rejects: ClassVar[bool] = False
    band: ClassVar[bool] = True

    lo: Annotated[float, Meta(gt=0, le=1, description="smallest weight of a rollout")] = 0.99
    hi: Annotated[float, Meta(ge=1, description="largest weight of a rollout")] = 1.01

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        mean = sum_by_rollout(tokens.mismatch, mask, tokens.sample_index).mean
        return truncate(ratio(mean)[tokens.sample_index], mask, self.lo, self.hi)


class GeometricMask(Correction, frozen=True):
    """Reject rollouts whose geometric mean ratio leaves the band: a rollout is kept where `lo <=
    exp(mean l) <= hi`.

    What is kept has weight 1, as in verl and SkyRL, so that any weight may follow: `geometric_tis`
    with the same bounds gives the masked geometric ratio. Diagnostics: `rollouts` rejected.

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[4.0, 1.0, 0.25], sample_index=[0, 0, 1])
    >>> GeometricMask(lo=0.5, hi=3.0).apply(some, some.mask).kept.tolist()
    [True, True, False]
    """

    kind: ClassVar[str] = "geometric_mask"
    reads: ClassVar[frozenset[str]] = frozenset({"mismatch"})
    by_rollout: ClassVar[bool] = True
    band: ClassVar[bool] = True

    lo: Annotated[
        float,
        Meta(gt=0, le=1, description="smallest geometric mean ratio of a rollout that is kept"),
    ] = 0.99
    hi: Annotated[
        float, Meta(ge=1, description="largest geometric mean ratio of a rollout that is kept")
    ] = 1.01

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        mean = sum_by_rollout(tokens.mismatch, mask, tokens.sample_index).mean
        inside = (mean >= math.log(self.lo)) & (mean <= math.log(self.hi))
        return keep(*keep_rollouts(inside, tokens, mask))
