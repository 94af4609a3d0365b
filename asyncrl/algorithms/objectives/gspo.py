"""GSPO: the clipped surrogate of a rollout's mean ratio."""

from __future__ import annotations

from typing import ClassVar, Literal

from asyncrl.algorithms.objectives.objective import ClipBounds, Objective, TokenLoss
from asyncrl.algorithms.objectives.ppo import clipped
from asyncrl.algorithms.tokens import Tokens, sum_by_rollout


class Gspo(Objective):
    """`Clip` with the rollout's geometric mean ratio `s = exp(mean log_ratio)` over the mask, in
    its token form: every token's ratio has the value s, and the gradient of its own `log_ratio`
    times s (GSPO-token, arXiv 2507.18071).

    Where the advantage and the weight are the same in all of a rollout, the mean over its tokens
    has the gradient of the rollout's own loss, as in the paper, so `train.loss_mean` is `rollout`.
    (Weighted by length it would be another objective, LUSPO, arXiv 2602.05261.) The paper's bounds
    are lo = 3e-4, hi = 4e-4.

    The mean ratio of this rollout is 2:

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[4.0, 1.0], sample_index=[0, 0])
    >>> Gspo().per_token(some, ClipBounds(hi=9.0)).loss.tolist()
    [-2.0, -2.0]
    """

    kind: ClassVar[str] = "gspo"
    settings: ClassVar[frozenset[str]] = frozenset({"clip_lo", "clip_hi"})
    ratio: ClassVar[Literal["none", "token", "rollout_mean", "rollout_product"]] = "rollout_mean"
    bounded: ClassVar[Literal["both", "positive", "nowhere"]] = "positive"
    by_rollout: ClassVar[bool] = True

    def per_token(self, tokens: Tokens, bounds: ClipBounds) -> TokenLoss:
        log = tokens.log_ratio
        mean = sum_by_rollout(log.detach(), tokens.mask, tokens.sample_index).mean
        of_token = mean[tokens.sample_index].float()
        return clipped(of_token + (log - log.detach()), tokens.advantage, bounds)

    def describe(self, bounds: ClipBounds) -> str:
        return f"mean ratio of a rollout clipped to {bounds.interval}"
