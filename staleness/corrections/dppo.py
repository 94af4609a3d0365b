"""DPPO: a trust region in probability and not in ratio."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens
from asyncrl.staleness.corrections.correction import Corrected, Correction, keep


class Dppo(Correction, frozen=True):
    """Reject tokens whose probability has already moved far in the direction that their advantage
    pushes (DPPO with binary total variation, arXiv 2602.04879, eq. 12).

    A token is rejected where its probability has risen by more than `hi` and its advantage is
    positive, or has fallen by more than `lo` and its advantage is negative: an update would take it
    further. Both bounds are from behaviour to current. (prime-rl also rejects where the advantage
    is 0.) The paper's own objective is `M r A`: `train.objective = one_forward` under this mask,
    with `train.loss_divisor = all`. Diagnostics: tokens `risen`, `fallen`.

    The probability of both tokens rises from 0.5 to 0.9:

    >>> import math
    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[1.8, 1.8], behaviour=[math.log(0.5)] * 2, advantage=[1.0, -1.0])
    >>> Dppo(lo=0.2, hi=0.2).apply(some, some.mask).kept.tolist()
    [False, True]
    """

    kind: ClassVar[str] = "dppo"
    reads: ClassVar[frozenset[str]] = frozenset({"current", "behaviour", "advantage"})
    trust_region: ClassVar[bool] = True

    lo: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="largest fall in probability of a token whose advantage is not positive",
        ),
    ] = 0.2
    hi: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="largest rise in probability of a token whose advantage is positive",
        ),
    ] = 0.2

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        current, behaviour = (
            log.where(mask, 0.0).double().exp() for log in (tokens.current, tokens.behaviour)
        )
        moved = current - behaviour
        risen = mask & (tokens.advantage > 0) & (moved > self.hi)
        fallen = mask & (tokens.advantage < 0) & (moved < -self.lo)
        return keep(mask & ~risen & ~fallen, {"risen": risen.sum(), "fallen": fallen.sum()})
