"""Which tokens may enter the loss, and with what weight. Invariant: a weight has no gradient, and is 0 where a token is rejected.

Every correction is a function of (log_ratio, mask, ...) -> Correction, so that they compose: the `kept` of one is the mask of the
next, and their weights multiply. Log-ratios are finite (see `ratios.log_ratio`) and compared as
logarithms: nothing is exponentiated to be rejected.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Correction(NamedTuple):
    """`weight`: float32 [tokens], 0 where not kept. `kept`: bool [tokens], a subset of the mask given."""

    weight: Tensor
    kept: Tensor


def none(log_ratio: Tensor, mask: Tensor) -> Correction:
    """Every token of the mask, with weight 1."""
    return Correction(mask.to(torch.float32), mask)


def icepop(log_ratio: Tensor, mask: Tensor, *, lo: float, hi: float) -> Correction:
    """IcePop (arXiv 2510.18855): a token is kept where `lo <= exp(log_ratio) <= hi`, bounds included.

    `lo` in (0, 1] and `hi` >= 1 are ratios of current to behaviour policy. The weight of a kept token is 1 and not the ratio:
    in the two-policy form the objective's own ratio is that weight already.
    """
    log = log_ratio.detach()
    kept = mask & (log >= math.log(lo)) & (log <= math.log(hi))
    return Correction(kept.to(torch.float32), kept)
