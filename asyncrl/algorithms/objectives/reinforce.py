"""Policy gradients with a weight without gradient: only the log-probability has one."""

from __future__ import annotations

from typing import ClassVar, Literal

from asyncrl.algorithms.objectives.objective import ClipBounds, Objective, TokenLoss
from asyncrl.algorithms.ratios import ratio
from asyncrl.algorithms.tokens import Tokens, sum_by_rollout


class Cispo(Objective):
    """`-sg(min(r, 1 + hi)) A current`: the weight is truncated, and no token loses its gradient
    (CISPO, MiniMax-M1, arXiv 2506.13585, where the lower bound has no effect).

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> found = Cispo().per_token(tokens(ratios=[1.0, 2.0]), ClipBounds(hi=0.5))
    >>> [round(loss, 2) for loss in found.loss.tolist()], found.clipped.tolist()
    ([1.0, 0.46], [False, True])
    """

    kind: ClassVar[str] = "cispo"
    settings: ClassVar[frozenset[str]] = frozenset({"clip_hi"})
    bounded: ClassVar[Literal["both", "positive", "nowhere"]] = "both"

    def per_token(self, tokens: Tokens, bounds: ClipBounds) -> TokenLoss:
        r = ratio(tokens.log_ratio.detach())
        loss = -r.clamp(max=1 + bounds.hi) * tokens.advantage * tokens.current
        return TokenLoss(loss, r > 1 + bounds.hi)

    def describe(self, bounds: ClipBounds) -> str:
        return f"weight ≤ {1 + bounds.hi:g}"


class Topr(Objective):
    """`-w A current`, with w = 1 where A >= 0, and `min(exp(sum log_ratio), 1)` of the rollout,
    over the mask and without a gradient, where A < 0 (tapered off-policy REINFORCE, arXiv
    2503.14286). A rollout that became unlikely under the policy is pushed away less.

    >>> import math
    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[0.5, 0.5], advantage=[1.0, -1.0], behaviour=[math.log(2) - 1] * 2)
    >>> Topr().per_token(some, ClipBounds()).loss.tolist()
    [1.0, -0.5]
    """

    kind: ClassVar[str] = "topr"
    ratio: ClassVar[Literal["none", "token", "rollout_mean", "rollout_product"]] = "rollout_product"
    bounded: ClassVar[Literal["both", "positive", "nowhere"]] = "both"

    def per_token(self, tokens: Tokens, bounds: ClipBounds) -> TokenLoss:
        log = tokens.log_ratio.detach()
        of_rollout = sum_by_rollout(log, tokens.mask, tokens.sample_index).total
        total = of_rollout[tokens.sample_index].float()
        negative = tokens.advantage < 0
        weight = ratio(total).clamp(max=1.0).where(negative, 1.0)
        return TokenLoss(-weight * tokens.advantage * tokens.current, negative & (total > 0))

    def describe(self, bounds: ClipBounds) -> str:
        return "weight ≤ 1 of rollouts whose advantage is negative"


class Reinforce(Objective):
    """`-A current`: only the corrections' weights account for off-policy tokens.

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[1.0, 1.0], advantage=[2.0, -0.5], behaviour=[-1.0, -3.0])
    >>> Reinforce().per_token(some, ClipBounds()).loss.tolist()
    [2.0, -1.5]
    """

    kind: ClassVar[str] = "reinforce"
    ratio: ClassVar[Literal["none", "token", "rollout_mean", "rollout_product"]] = "none"

    def per_token(self, tokens: Tokens, bounds: ClipBounds) -> TokenLoss:
        return TokenLoss(-tokens.advantage * tokens.current, tokens.mask & False)

    def describe(self, bounds: ClipBounds) -> str:
        return "no ratio"
