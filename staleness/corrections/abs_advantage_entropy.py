"""A mask for the tokens that D3S trains: of a large advantage, and hesitant."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens
from asyncrl.staleness.corrections.correction import Corrected, Correction, keep


class AbsAdvantageEntropy(Correction, frozen=True):
    """Keep the `share` of tokens of the largest `|A| H`, and reject the others (D3S, its choice of
    tokens; its schedule of the share is not here). H is the entropy. The share is of all tokens
    that are updated with together; tokens of the same product as the last one kept are kept. It
    prefers a part of the tokens by their advantage, so the gradient is another one.

    >>> import torch
    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[1.0] * 3)._replace(
    ...     advantage=torch.tensor([-2.0, 0.5, 1.0]), entropy=torch.tensor([1.0, 3.0, 1.0])
    ... )
    >>> AbsAdvantageEntropy(share=0.6).apply(some, some.mask).kept.tolist()
    [True, True, False]
    """

    kind: ClassVar[str] = "abs_advantage_entropy"
    reads: ClassVar[frozenset[str]] = frozenset({"entropy", "advantage"})
    whole_step: ClassVar[bool] = True
    by_design: ClassVar[bool] = True

    share: Annotated[float, Meta(gt=0, le=1, description="share of the tokens that is kept")] = 0.2

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        assert tokens.entropy is not None
        product = tokens.advantage.abs() * tokens.entropy
        inside = product[mask]
        if not len(inside):
            return keep(mask, {})
        count = max(1, math.ceil(self.share * len(inside) - 1e-9))  # 0.07 of 100 tokens is 7
        least = inside.sort(descending=True).values[count - 1]
        return keep(mask & (product >= least), {})
