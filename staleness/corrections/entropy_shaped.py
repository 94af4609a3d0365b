"""An advantage that grows where the policy hesitates."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens
from asyncrl.staleness.corrections.correction import Corrected, Correction


class EntropyShaped(Correction, frozen=True):
    """Weigh each token by `(A + min(alpha H, |A| / kappa)) / A`, so that the entropy H is added to
    the advantage A, up to a part of it ("reasoning with exploration", arXiv 2506.14758, eq. 4; MSSR
    has the same with one rollout a prompt, arXiv 2512.18215). So what was good counts more, and
    what was bad less; the gradient is another one.

    >>> import torch
    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[1.0] * 3)._replace(
    ...     advantage=torch.tensor([1.0, -1.0, 0.0]), entropy=torch.tensor([0.5, 9.0, 1.0])
    ... )
    >>> [round(weight, 2) for weight in EntropyShaped().apply(some, some.mask).weight.tolist()]
    [1.2, 0.5, 1.0]
    """

    kind: ClassVar[str] = "entropy_shaped"
    reads: ClassVar[frozenset[str]] = frozenset({"entropy", "advantage"})
    rejects: ClassVar[bool] = False

    alpha: Annotated[
        float, Meta(gt=0, description="what a nat of entropy adds to the advantage")
    ] = 0.4
    kappa: Annotated[
        float, Meta(gt=1, description="the advantage over the most that is added to it")
    ] = 2.0

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        assert tokens.entropy is not None
        size = tokens.advantage.abs()
        added = (self.alpha * tokens.entropy).minimum(size / self.kappa)
        share = (added / size.where(size > 0, 1.0)) * tokens.advantage.sign()
        return Corrected((1 + share).where(mask, 0.0).float(), mask, {})
