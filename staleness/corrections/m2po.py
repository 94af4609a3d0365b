"""M2PO: a bound for the second moment of log-ratios."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens
from asyncrl.staleness.corrections.correction import Corrected, Correction, keep


class M2po(Correction, frozen=True):
    """Reject the tokens that have moved furthest the way their advantage pushes, until the mean
    square of such log-ratios is small (M2PO, arXiv 2510.01161, algorithm 1).

    A trust region is for tokens with a ratio of current to behaviour over 1 and a positive
    advantage, or under 1 and a negative one. Of those the tokens of the largest `(current -
    behaviour)^2` are rejected, one by one, until the mean over the rest of them is at most `hi`.
    Other tokens are kept. (AReaL has all tokens in the mean.)

    The paper's objective is the ratio under this mask: `train.objective = one_forward`, with
    `train.loss_divisor = all`. The mean is over all tokens that are updated with together, as in
    the paper. Diagnostics: `region` tokens, and the sum of `squares` of those of them that are
    kept.

    Squares 0.01, 0.09 and 0.25. The mean of the first two is 0.05:

    >>> import math
    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[math.exp(0.1), math.exp(0.3), math.exp(0.5)])
    >>> M2po(hi=0.06).apply(some, some.mask).kept.tolist()
    [True, True, False]
    """

    kind: ClassVar[str] = "m2po"
    reads: ClassVar[frozenset[str]] = frozenset({"current", "behaviour", "advantage"})
    whole_step: ClassVar[bool] = True
    trust_region: ClassVar[bool] = True

    hi: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "largest mean square of the log-ratios of such tokens that are kept, in nats "
                "squared"
            ),
        ),
    ] = 0.04

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        current, behaviour = (
            log.where(mask, 0.0).double() for log in (tokens.current, tokens.behaviour)
        )
        log = current - behaviour
        region = mask & (log * tokens.advantage > 0)
        # Smallest squares first: the mean of the first k grows with k, so the first ones stay.
        places = region.nonzero().squeeze(1)
        places = places[log[places].abs().argsort(stable=True)]
        squares = log[places].square()
        number = squares.new_ones(len(places)).cumsum(0)
        kept = mask.clone()
        kept[places] = squares.cumsum(0) <= self.hi * number
        return keep(
            kept,
            {"region": region.sum(), "squares": log.square().where(kept & region, 0.0).sum()},
        )
