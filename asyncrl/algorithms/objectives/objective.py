"""The protocol of an objective: its requirements on the configuration, and its loss per token.

An objective is one class in one file. Its class variables describe it for the rules of the
configuration, and `per_token` is the formula. No torch here: the configuration imports this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens


class ClipBounds(NamedTuple):
    """Bounds of a ratio: `lo` (0, 1) and `hi` > 0 are distances from 1, so that the ratio is
    clipped to [1 - lo, 1 + hi]; `dual` > 1 + hi is the largest ratio that counts where the
    advantage is negative. They are `train.clip_lo`, `train.clip_hi` and `train.dual_clip`.

    >>> ClipBounds().interval
    '[0.8, 1.28]'
    """

    lo: float = 0.2
    hi: float = 0.28
    dual: float = 3.0

    @property
    def interval(self) -> str:
        """The band of the ratio, as text."""
        return f"[{1 - self.lo:g}, {1 + self.hi:g}]"


class TokenLoss(NamedTuple):
    """Result of an objective: `loss`, float32 [tokens], carrying the gradient; `clipped`, bool
    [tokens], where a bound changes the gradient.

    >>> import torch
    >>> TokenLoss(torch.tensor([-1.0, 0.5]), torch.tensor([False, True])).loss.sum().item()
    -0.5
    """

    loss: Tensor
    clipped: Tensor


class Objective(ABC):
    """Loss of each token. It reduces nothing over tokens, so that a step may be split.

    `kind` is its name in run.toml; of a user's own it is `module:name`. `settings`: the settings of
    `[train]` that it reads, of `clip_lo`, `clip_hi` and `dual_clip`. `ratio`: the ratio of current
    to proximal policy in it, of a token, of a rollout by its mean or product, or none. `bounded`:
    where a bound keeps that ratio from growing: for either sign of the advantage, for a positive
    one alone, or nowhere. `by_rollout`: it is a loss of whole rollouts, each of which counts alike
    (`train.loss_mean = rollout`). `of_foreign`: it treats foreign tokens apart, so there must be a
    source of them.

    >>> from asyncrl.algorithms.objectives import Clip
    >>> Clip.kind, Clip.ratio, Clip.bounded, Clip().describe(ClipBounds())
    ('clip', 'token', 'positive', 'ratio clipped to [0.8, 1.28]')
    """

    kind: ClassVar[str] = ""
    settings: ClassVar[frozenset[str]] = frozenset()
    ratio: ClassVar[Literal["none", "token", "rollout_mean", "rollout_product"]] = "token"
    bounded: ClassVar[Literal["both", "positive", "nowhere"]] = "nowhere"
    by_rollout: ClassVar[bool] = False
    of_foreign: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" not in cls.__dict__:
            cls.kind = f"{cls.__module__.rpartition('/')[2]}:{cls.__qualname__}"

    @abstractmethod
    def per_token(self, tokens: Tokens, bounds: ClipBounds) -> TokenLoss:
        """Loss of each token, [tokens]. `log_ratio`, `current` and `advantage` are 0 outside of
        `tokens.mask`, and results there are ignored. A ratio of a rollout is over the mask."""

    def describe(self, bounds: ClipBounds) -> str:
        """Describe its effect on the ratio, for the table before a run."""
        return "your own"


def token_loss(objective: Objective, tokens: Tokens, bounds: ClipBounds) -> TokenLoss:
    """Loss of each token of the mask; 0, without a gradient, outside of it. A correction's weight
    multiplies it afterwards: with `clip` and `mismatch = proximal - behaviour` that is the
    decoupled objective (AReaL, arXiv 2505.24298).

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> from asyncrl.algorithms.objectives import Clip
    >>> token_loss(Clip(), tokens(ratios=[1.0, 2.0]), ClipBounds(hi=0.5)).loss.tolist()
    [-1.0, -1.5]
    """
    mask = tokens.mask
    inside = tokens._replace(
        log_ratio=tokens.log_ratio.where(mask, 0.0),
        current=tokens.current.where(mask, 0.0),
        advantage=tokens.advantage.where(mask, 0.0),
    )
    result = objective.per_token(inside, bounds)
    return TokenLoss(result.loss.where(mask, 0.0), result.clipped & mask)
