"""quadratic.py: a clipped surrogate without a corner."""

from typing import ClassVar, Literal

from asyncrl.algorithms.objectives import ClipBounds, Objective, TokenLoss
from asyncrl.algorithms.ratios import ratio
from asyncrl.algorithms.tokens import Tokens


class Quadratic(Objective):
    """`-(r A - |A| (r - 1)^2 / (2 hi))`: the gradient is 0 where r reaches 1 + hi, and pulls back
    beyond (SPO, arXiv 2401.16025)."""

    settings: ClassVar[frozenset[str]] = frozenset({"clip_hi"})
    bounded: ClassVar[Literal["both", "positive", "nowhere"]] = "both"

    def per_token(self, tokens: Tokens, bounds: ClipBounds) -> TokenLoss:
        r = ratio(tokens.log_ratio)
        pull = tokens.advantage.abs() * (r - 1).square() / (2 * bounds.hi)
        beyond = (r - 1) * tokens.advantage.sign() > bounds.hi
        return TokenLoss(pull - r * tokens.advantage, beyond.detach())

    def describe(self, bounds: ClipBounds) -> str:
        return f"ratio pulled towards [{1 - bounds.hi:g}, {1 + bounds.hi:g}]"
