"""A weight that shrinks with age."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens
from asyncrl.staleness.corrections.correction import Corrected, Correction


class AgeDecay(Correction, frozen=True):
    """Weigh each token less for each version it is old: `gamma ** lag`, in (0, 1] (of the family of
    staleness functions of FedAsync, arXiv 1903.03934).

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[1.0, 1.0, 1.0], lag=[0, 1, 2])
    >>> AgeDecay(gamma=0.5).apply(some, some.mask).weight.tolist()
    [1.0, 0.5, 0.25]
    """

    kind: ClassVar[str] = "age_decay"
    reads: ClassVar[frozenset[str]] = frozenset({"lag"})
    rejects: ClassVar[bool] = False

    gamma: Annotated[
        float, Meta(gt=0, le=1, description="weight of a token for each version of its lag")
    ] = 0.95

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        weight = (self.gamma ** tokens.lag.double()).where(mask, 0.0)
        return Corrected(weight.float(), mask, {})
