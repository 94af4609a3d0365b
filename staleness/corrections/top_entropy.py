"""A mask for the tokens at which the policy hesitates."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens
from asyncrl.staleness.corrections.correction import Corrected, Correction, keep


class TopEntropy(Correction, frozen=True):
    """Keep the `share` of tokens of the largest entropy, and reject the others ("beyond the 80/20
    rule", arXiv 2506.01939, which has 0.2). The share is of all tokens that are updated with
    together; tokens of the same entropy as the last one kept are kept.

    >>> import torch
    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[1.0] * 5)._replace(entropy=torch.tensor([0.1, 2.0, 0.3, 1.0, 0.0]))
    >>> TopEntropy(share=0.4).apply(some, some.mask).kept.tolist()
    [False, True, False, True, False]
    """

    kind: ClassVar[str] = "top_entropy"
    reads: ClassVar[frozenset[str]] = frozenset({"entropy"})
    whole_step: ClassVar[bool] = True
    by_design: ClassVar[bool] = True

    share: Annotated[float, Meta(gt=0, le=1, description="share of the tokens that is kept")] = 0.2

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        assert tokens.entropy is not None
        inside = tokens.entropy[mask]
        if not len(inside):
            return keep(mask, {})
        # a share of 0.07 of 100 tokens is 7, though 0.07 * 100 is 7.000000000000001
        count = max(1, math.ceil(self.share * len(inside) - 1e-9))
        least = inside.sort(descending=True).values[count - 1]
        return keep(mask & (tokens.entropy >= least), {})
