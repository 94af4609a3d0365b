"""M2PO: a bound for the second moment of log-ratios."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from staleness.corrections.correction import Corrected, Correction, keep
from staleness.tensors import Tensor
from staleness.tokens import Tokens


class M2po(Correction, frozen=True):
    """Reject the tokens that have moved furthest the way their advantage pushes, until the mean
    square of such log-ratios is small (M2PO, arXiv 2510.01161, algorithm 1).

    A trust region is for tokens with a ratio of current to behaviour over 1 and a positive
    advantage, or under 1 and a negative one. Of those the tokens of the largest `(current -
    behaviour)^2` are rejected, one by one, until the mean over the rest of them is at most `hi`.
    Other tokens are kept. (AReaL has all tokens in the mean.)

    The mean is over each rollout, and the paper's over a batch: what is kept must not depend on how
    a step is split into calls. Where the bound holds in every rollout it holds in the step, at the
    price of more tokens. One `sample_index` for all tokens is the paper's set. Diagnostics:
    `region` tokens, and the sum of `squares` of those of them that are kept.

    Squares 0.01, 0.09 and 0.25 in one rollout. The mean of the first two is 0.05:

    >>> import math
    >>> from staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[math.exp(0.1), math.exp(0.3), math.exp(0.5)], sample_index=[0, 0, 0])
    >>> M2po(hi=0.06).apply(some, some.mask).kept.tolist()
    [True, True, False]
    """

    kind: ClassVar[str] = "m2po"
    reads: ClassVar[frozenset[str]] = frozenset({"current", "behaviour", "advantage"})

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
        # The region of each rollout in a row, smallest squares first: the mean of the first k grows
        # with k, so the first ones are allowed.
        places = region.nonzero().squeeze(1)
        places = places[log[places].abs().argsort(stable=True)]
        places = places[tokens.sample_index[places].argsort(stable=True)]
        sample_index, squares = tokens.sample_index[places], log[places].square()
        counts = sample_index.bincount()
        start = (counts.cumsum(0) - counts)[sample_index]
        number = squares.new_ones(len(places)).cumsum(0) - start
        before = squares.new_zeros(len(places) + 1)
        before[1:] = squares.cumsum(0)
        kept = mask.clone()
        kept[places] = before[1:] - before[start] <= self.hi * number
        return keep(
            kept,
            {"region": region.sum(), "squares": log.square().where(kept & region, 0.0).sum()},
        )
