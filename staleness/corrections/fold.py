"""The list of corrections, folded in order. Invariant: a token is rejected by one correction, the
first to do so, and known by its name.

Each correction sees the mask that those before it left, and weights multiply. A weight has no
gradient, and is 0 where a token is rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens
from asyncrl.staleness.corrections.correction import Correction


class Folded(NamedTuple):
    """Result of a whole list.

    `weight`: float32 [tokens], without a gradient, 0 where not kept. `kept`: bool [tokens], a
    subset of the tokens' mask. `rejected_by`: int64 [tokens], the place in the list of the
    correction that rejected the token, -1 where none did. `diagnostics`: the corrections' own sums
    as scalar tensors, by `kind_name`, and `weight`, the sum of all weights.

    icepop rejects the first token, and the second one weighs half for its age:

    >>> from asyncrl.staleness.corrections import AgeDecay, IcePop
    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[9.0, 1.0], lag=[1, 1])
    >>> found = apply_corrections([IcePop(), AgeDecay(gamma=0.5)], some, weighted=True)
    >>> found.weight.tolist(), found.rejected_by.tolist()
    ([0.0, 0.5], [0, -1])
    >>> int(found.diagnostics["icepop_above"])
    1
    """

    weight: Tensor
    kept: Tensor
    rejected_by: Tensor
    diagnostics: dict[str, Tensor]


def apply_corrections(
    corrections: Sequence[Correction], tokens: Tokens, *, weighted: bool
) -> Folded:
    """Fold the list over the mask of `tokens`. An empty list keeps the mask with weight 1.

    `weighted`: true if ratios may weigh the loss. Where they may not, because the objective's own
    ratio is the weight already, a correction that rejects has weight 1 for what it keeps, and one
    that only weighs by a ratio is a ValueError; age still weighs.
    """
    tokens = Tokens._make(None if tensor is None else tensor.detach() for tensor in tokens)
    kept, weight = tokens.mask, tokens.mask.float()
    rejected_by = tokens.sample_index.new_full(tokens.sample_index.shape, -1)
    diagnostics: dict[str, Tensor] = {}
    for number, correction in enumerate(corrections):
        if correction.only_weighs and not weighted:
            raise ValueError(f"{correction.kind} weighs by a ratio that the objective has already")
        before, result = kept, correction.apply(tokens, kept)
        kept = result.kept
        rejected_by = rejected_by.masked_fill(before & ~kept, number)
        weight = weight * (result.weight if weighted or not correction.weighs_by_ratio else kept)
        for name, value in result.diagnostics.items():
            key = f"{correction.kind}_{name}"
            diagnostics[key] = diagnostics[key] + value if key in diagnostics else value
    diagnostics["weight"] = weight.double().sum()
    return Folded(weight, kept, rejected_by, diagnostics)
