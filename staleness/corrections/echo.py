"""A weight for tokens that the policy was unsure of, as in ECHO."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.ratios import ratio
from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens
from asyncrl.staleness.corrections.correction import Corrected, Correction


class Echo(Correction, frozen=True):
    """Weigh each token by `1 + strength S`, where S is `z(H) + z(1 - C)`, clipped to [-2, 2] (ECHO,
    arXiv 2602.02150, its hybrid advantage, as its code has it; not its adaptive clip).

    H is the entropy, and C the token's own probability, as in the code's fused path (elsewhere the
    mean of the five largest). z subtracts the mean and divides by the standard deviation over all
    tokens that are updated with together; with fewer than two it is 0. The weight depends on the
    token that was drawn, so the gradient is another one.

    >>> import torch
    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[1.0] * 2, behaviour=[-0.1, -2.0])
    >>> some = some._replace(entropy=torch.tensor([0.2, 1.4]))
    >>> [round(weight, 3) for weight in Echo().apply(some, some.mask).weight.tolist()]
    [0.859, 1.141]
    """

    kind: ClassVar[str] = "echo"
    reads: ClassVar[frozenset[str]] = frozenset({"entropy", "current"})
    rejects: ClassVar[bool] = False
    whole_step: ClassVar[bool] = True

    strength: Annotated[
        float, Meta(gt=0, lt=0.5, description="what a standard deviation adds to the weight")
    ] = 0.1

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        assert tokens.entropy is not None
        unsure = 1 - ratio(tokens.current.where(mask, 0.0))
        score = _whitened(tokens.entropy, mask) + _whitened(unsure, mask)
        weight = 1 + self.strength * score.clamp(-2.0, 2.0)
        return Corrected(weight.where(mask, 0.0).float(), mask, {})


def _whitened(values: Tensor, mask: Tensor) -> Tensor:
    """The distances from the mean over the mask, in its standard deviations, float64 [tokens]."""
    values, count = values.where(mask, 0.0).double(), mask.sum()
    if count < 2:
        return values * 0.0
    apart = values - values.sum() / count
    variance = apart.where(mask, 0.0).square().sum() / (count - 1)
    return apart * (variance + 1e-8).rsqrt()
