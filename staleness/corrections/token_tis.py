"""Truncated importance sampling of tokens."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.ratios import ratio
from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens
from asyncrl.staleness.corrections.correction import Corrected, Correction, truncate


class TokenTis(Correction, frozen=True):
    """Weigh each token by its ratio, truncated from above: `min(exp(l), hi)`, in (0, hi] (as in
    IMPALA, arXiv 1802.01561; verl).

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[0.5, 1.0, 3.0])
    >>> TokenTis(hi=2.0).apply(some, some.mask).weight.tolist()
    [0.5, 1.0, 2.0]
    """

    kind: ClassVar[str] = "token_tis"
    reads: ClassVar[frozenset[str]] = frozenset({"mismatch"})
    weighs_by_ratio: ClassVar[bool] = True
    rejects: ClassVar[bool] = False

    hi: Annotated[float, Meta(ge=1, description="largest weight of a token")] = 2.0

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        return truncate(ratio(tokens.mismatch), mask, 0.0, self.hi)
