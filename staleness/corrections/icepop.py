"""IcePop: a band for the ratio of each token."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens
from asyncrl.staleness.corrections.correction import Corrected, Correction, keep_by_ratio


class IcePop(Correction, frozen=True):
    """Reject tokens whose ratio leaves the band (IcePop, arXiv 2510.18855): a token is kept, and
    has its ratio as its weight, where `lo <= exp(l) <= hi`. The band is the paper's; prime-rl had
    lo = 0.2. Diagnostics: tokens `below` and `above` the band.

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[0.25, 0.5, 4.0, 6.0])
    >>> IcePop(lo=0.5, hi=5.0).apply(some, some.mask).weight.tolist()
    [0.0, 0.5, 4.0, 0.0]
    """

    kind: ClassVar[str] = "icepop"
    reads: ClassVar[frozenset[str]] = frozenset({"mismatch"})
    weighs_by_ratio: ClassVar[bool] = True
    band: ClassVar[bool] = True
    bounds_ratio: ClassVar[bool] = True

    lo: Annotated[float, Meta(gt=0, le=1, description="smallest ratio of a token that is kept")] = (
        0.5
    )
    hi: Annotated[float, Meta(ge=1, description="largest ratio of a token that is kept")] = 5.0

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        log = tokens.mismatch
        below, above = mask & (log < math.log(self.lo)), mask & (log > math.log(self.hi))
        return keep_by_ratio(
            log, mask & ~below & ~above, {"below": below.sum(), "above": above.sum()}
        )
