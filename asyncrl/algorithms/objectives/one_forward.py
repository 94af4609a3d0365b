"""The unclipped ratio, for a mask that bounds it."""

from __future__ import annotations

from typing import ClassVar

from asyncrl.algorithms.objectives.objective import ClipBounds, Objective, TokenLoss
from asyncrl.algorithms.ratios import ratio
from asyncrl.algorithms.tokens import Tokens


class OneForward(Objective):
    """`-r A`, with the gradient through r: with `log_ratio = current - behaviour` and the mask of
    IcePop, that is `-M(k) A` of INTELLECT-3 (arXiv 2512.16144), which needs no other forward pass;
    with the mask of DPPO, `-M r A` of DPPO (arXiv 2602.04879). Without such a mask, only e^20
    bounds r.

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[1.0, 2.0])
    >>> OneForward().per_token(some, ClipBounds()).loss.tolist()
    [-1.0, -2.0]
    """

    kind: ClassVar[str] = "one_forward"

    def per_token(self, tokens: Tokens, bounds: ClipBounds) -> TokenLoss:
        return TokenLoss(-ratio(tokens.log_ratio) * tokens.advantage, tokens.mask & False)

    def describe(self, bounds: ClipBounds) -> str:
        return "ratio not clipped"
