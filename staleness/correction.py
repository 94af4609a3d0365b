"""The list of corrections, folded in order. Invariant: a token is rejected by one correction, the
first to do so, and known by its name.

Each correction sees the mask that those before it left, and weights multiply. A weight has no
gradient, and is 0 where a token is rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, assert_never

import torch
from torch import Tensor

from staleness import rejection, weights
from staleness.estimators import (
    K3,
    AgeDecay,
    Dppo,
    Estimator,
    GeometricMask,
    GeometricTis,
    IcePop,
    KPop,
    M2po,
    Mis,
    Opsm,
    SequenceTis,
    TokenTis,
)
from staleness.tokens import Correction, Tokens

__all__ = ["Corrected", "Correction", "Tokens", "apply", "correct"]


class Corrected(NamedTuple):
    """`weight`: float32 [tokens], without a gradient, 0 where not kept. `kept`: bool [tokens], a
    subset of the tokens' mask. `by`: int64 [tokens], the place in the list of the correction that
    rejected the token, -1 where none did. `rejected`: int64 [estimators], how many tokens each
    rejected. `diagnostics`: the corrections' own sums as scalar tensors, by `kind_name`, and
    `weight`, the sum of all weights."""

    weight: Tensor
    kept: Tensor
    by: Tensor
    rejected: Tensor
    diagnostics: dict[str, Tensor]


def apply(estimators: Sequence[Estimator], tokens: Tokens, *, weighted: bool) -> Corrected:
    """Fold the list over the mask of `tokens`. An empty list keeps the mask with weight 1.

    `weighted`: whether ratios may weigh the loss. Where they may not, because the objective's own
    ratio is the weight already, a correction that rejects has weight 1 for what it keeps, and one
    that only weighs by a ratio is a ValueError; age still weighs.
    """
    kept, weight = tokens.mask, tokens.mask.float()
    by = torch.full_like(tokens.sample_index, -1)
    rejected: list[Tensor] = []
    diagnostics: dict[str, Tensor] = {}
    for place, estimator in enumerate(estimators):
        if estimator.weights and not weighted:
            raise ValueError(f"{estimator.kind} weighs by a ratio that the objective has already")
        before, result = kept, correct(estimator, tokens, kept)
        kept = result.kept
        gone = before & ~kept
        by = torch.where(gone, place, by)
        rejected.append(gone.sum())
        weight = weight * (result.weight if weighted or not estimator.measures else kept)
        for name, value in result.diagnostics.items():
            key = f"{estimator.kind}_{name}"
            diagnostics[key] = diagnostics[key] + value if key in diagnostics else value
    diagnostics["weight"] = weight.sum(dtype=torch.float64)
    return Corrected(
        weight, kept, by, torch.stack(rejected) if rejected else by.new_zeros(0), diagnostics
    )


def correct(estimator: Estimator, tokens: Tokens, mask: Tensor) -> Correction:
    """One correction of the tokens of `mask`, with its own weight."""
    match estimator:
        case TokenTis(hi=hi):
            return weights.token_tis(tokens, mask, hi=hi)
        case SequenceTis(hi=hi):
            return weights.sequence_tis(tokens, mask, hi=hi)
        case GeometricTis(lo=lo, hi=hi):
            return weights.geometric_tis(tokens, mask, lo=lo, hi=hi)
        case AgeDecay(gamma=gamma):
            return weights.age_decay(tokens, mask, gamma=gamma)
        case GeometricMask(lo=lo, hi=hi):
            return rejection.geometric_mask(tokens, mask, lo=lo, hi=hi)
        case Mis(lo=lo, hi=hi):
            return rejection.mis(tokens, mask, lo=lo, hi=hi)
        case IcePop(lo=lo, hi=hi):
            return rejection.icepop(tokens, mask, lo=lo, hi=hi)
        case KPop(hi=hi):
            return rejection.kpop(tokens, mask, hi=hi)
        case K3(hi=hi):
            return rejection.k3(tokens, mask, hi=hi)
        case Dppo(lo=lo, hi=hi):
            return rejection.dppo(tokens, mask, lo=lo, hi=hi)
        case Opsm(hi=hi):
            return rejection.opsm(tokens, mask, hi=hi)
        case M2po(hi=hi):
            return rejection.m2po(tokens, mask, hi=hi)
        case _:
            assert_never(estimator)
