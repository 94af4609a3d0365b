"""LUFFY's shaping of tokens that the policy did not sample."""

from __future__ import annotations

from typing import ClassVar, Literal

from asyncrl.algorithms.objectives.objective import ClipBounds, Objective, TokenLoss
from asyncrl.algorithms.objectives.ppo import clipped
from asyncrl.algorithms.ratios import ratio
from asyncrl.algorithms.tokens import Tokens


class Luffy(Objective):
    """`Clip` for own tokens, and `-f(p) A` for foreign ones, with `f(p) = p / (p + 0.1)` of the
    current probability p (LUFFY, arXiv 2504.14945, eq. 8, its behaviour policy taken as 1). Nothing
    is clipped there. A gradient `p f'(p)` is largest at p = 0.1, so rare tokens of an answer learn
    more than certain ones; it is not that of the expected reward.

    >>> import torch
    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[1.5, 1.5])._replace(
    ...     current=torch.tensor([0.9, 0.1]).log(), own=torch.tensor([True, False])
    ... )
    >>> [round(loss, 3) for loss in Luffy().per_token(some, ClipBounds()).loss.tolist()]
    [-1.28, -0.5]
    """

    kind: ClassVar[str] = "luffy"
    settings: ClassVar[frozenset[str]] = frozenset({"clip_lo", "clip_hi"})
    bounded: ClassVar[Literal["both", "positive", "nowhere"]] = "positive"
    of_foreign: ClassVar[bool] = True
    gamma: ClassVar[float] = 0.1

    def per_token(self, tokens: Tokens, bounds: ClipBounds) -> TokenLoss:
        assert tokens.own is not None
        own = clipped(tokens.log_ratio, tokens.advantage, bounds)
        p = ratio(tokens.current)
        shaped = -p / (p + self.gamma) * tokens.advantage
        return TokenLoss(own.loss.where(tokens.own, shaped), own.clipped & tokens.own)

    def describe(self, bounds: ClipBounds) -> str:
        return f"ratio clipped to {bounds.interval}; foreign tokens by p / (p + {self.gamma:g})"
