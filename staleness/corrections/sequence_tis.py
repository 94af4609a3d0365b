"""Truncated importance sampling of rollouts."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.ratios import ratio
from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens, sum_by_rollout
from asyncrl.staleness.corrections.correction import Corrected, Correction, truncate


class SequenceTis(Correction, frozen=True):
    """Weigh each rollout by the product of its ratios, truncated from above: `min(exp(sum l), hi)`
    on every token of the rollout, in (0, hi] (VCPO, arXiv 2602.17616, has hi = 8). The sum is over
    the mask.

    Two rollouts, with the products 1.5 and 4:

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[3.0, 0.5, 4.0], sample_index=[0, 0, 1])
    >>> SequenceTis(hi=2.0).apply(some, some.mask).weight.tolist()
    [1.5, 1.5, 2.0]
    """

    kind: ClassVar[str] = "sequence_tis"
    reads: ClassVar[frozenset[str]] = frozenset({"mismatch"})
    by_rollout: ClassVar[bool] = True
    weighs_by_ratio: ClassVar[bool] = True
    rejects: ClassVar[bool] = False

    hi: Annotated[float, Meta(ge=1, description="largest weight of a rollout")] = 2.0

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        total = sum_by_rollout(tokens.mismatch, mask, tokens.sample_index).total
        return truncate(ratio(total)[tokens.sample_index], mask, 0.0, self.hi)
