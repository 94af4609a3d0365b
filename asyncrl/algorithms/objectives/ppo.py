"""The clipped surrogate, and its dual clip."""

from __future__ import annotations

from typing import ClassVar, Literal

from asyncrl.algorithms.objectives.objective import ClipBounds, Objective, TokenLoss
from asyncrl.algorithms.ratios import ratio
from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens


class Clip(Objective):
    """Clipped surrogate `-min(r A, clip(r, 1 - lo, 1 + hi) A)` (PPO, arXiv 1707.06347, eq. 7; GRPO,
    arXiv 2402.03300; asymmetric bounds as in DAPO, arXiv 2503.14476, eq. 8).

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> found = Clip().per_token(tokens(ratios=[1.0, 2.0]), ClipBounds(hi=0.5))
    >>> found.loss.tolist(), found.clipped.tolist()
    ([-1.0, -1.5], [False, True])
    """

    kind: ClassVar[str] = "clip"
    settings: ClassVar[frozenset[str]] = frozenset({"clip_lo", "clip_hi"})
    bounded: ClassVar[Literal["both", "positive", "nowhere"]] = "positive"

    def per_token(self, tokens: Tokens, bounds: ClipBounds) -> TokenLoss:
        return clipped(tokens.log_ratio, tokens.advantage, bounds)

    def describe(self, bounds: ClipBounds) -> str:
        return f"ratio clipped to {bounds.interval}"


class DualClip(Objective):
    """`Clip`, and where A < 0 at most `-dual A`: a ratio over `dual` has no gradient there, however
    large (arXiv 1912.09729, with dual = 3).

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[2.0, 4.0], advantage=[-1.0, -1.0])
    >>> DualClip().per_token(some, ClipBounds(dual=3.0)).loss.tolist()
    [2.0, 3.0]
    """

    kind: ClassVar[str] = "dual_clip"
    settings: ClassVar[frozenset[str]] = frozenset({"clip_lo", "clip_hi", "dual_clip"})
    bounded: ClassVar[Literal["both", "positive", "nowhere"]] = "both"

    def per_token(self, tokens: Tokens, bounds: ClipBounds) -> TokenLoss:
        once = clipped(tokens.log_ratio, tokens.advantage, bounds)
        most = -bounds.dual * tokens.advantage
        above = ((tokens.advantage < 0) & (once.loss > most)).detach()
        return TokenLoss(most.where(above, once.loss), once.clipped | above)

    def describe(self, bounds: ClipBounds) -> str:
        return (
            f"ratio clipped to {bounds.interval}, and at {bounds.dual:g} where the advantage is "
            "negative"
        )


def clipped(log_ratio: Tensor, advantage: Tensor, bounds: ClipBounds) -> TokenLoss:
    """Clipped surrogate of any log-ratios and advantages, both [tokens]."""
    r = ratio(log_ratio)
    bounded = r.clamp(1 - bounds.lo, 1 + bounds.hi)
    surrogate, limit = r * advantage, bounded * advantage
    return TokenLoss(-surrogate.minimum(limit), (limit < surrogate).detach())
