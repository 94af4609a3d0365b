"""What is minimized, per token. Invariant: an objective returns one loss a token, 0 outside of the
mask, and reduces nothing over tokens.

`r` is `exp(log_ratio)`, the ratio of current to proximal policy (to behaviour policy where there is
no proximal one), and A the advantage. A correction's weight multiplies the loss afterwards: with
`clipped` and `l = proximal - behaviour` that is the decoupled objective (AReaL, arXiv 2505.24298).
Bounds `lo` and `hi` are distances from 1: the ratio is clipped to [1 - lo, 1 + hi].
"""

from __future__ import annotations

from typing import Literal, NamedTuple, assert_never

import torch
from torch import Tensor

from staleness.ratios import ratio
from staleness.tokens import sum_by_rollout

Kind = Literal["clip", "dual_clip", "gspo", "cispo", "topr", "reinforce", "one_forward"]


class Inputs(NamedTuple):
    """Response tokens, as tensors of shape [tokens].

    `log_ratio`: float32 `current - proximal`, finite, with the gradient of `current` (see
    `proximal.log_ratios`). `current`: float32 log-probabilities with their gradient, read inside of
    the mask alone. `advantage`: float32. `sample_index`: int64 >= 0, a number for each rollout; all its
    tokens are in one call. `mask`: bool, the tokens that are trained: what the corrections kept.
    Ratios of a rollout are over these.
    """

    log_ratio: Tensor
    current: Tensor
    advantage: Tensor
    sample_index: Tensor
    mask: Tensor


class Objective(NamedTuple):
    """`loss`: float32 [tokens], carrying the gradient. `clipped`: bool [tokens], where a bound
    changes the gradient."""

    loss: Tensor
    clipped: Tensor


def objective(kind: Kind, inputs: Inputs, *, lo: float, hi: float, dual: float) -> Objective:
    """The objective by its name in run.toml; each takes the bounds that it has. Zero, without a
    gradient, outside of the mask."""
    mask = inputs.mask
    log, current = torch.where(mask, inputs.log_ratio, 0.0), torch.where(mask, inputs.current, 0.0)
    advantage, sample_index = torch.where(mask, inputs.advantage, 0.0), inputs.sample_index
    match kind:
        case "clip":
            result = clipped(log, advantage, lo=lo, hi=hi)
        case "dual_clip":
            result = dual_clipped(log, advantage, lo=lo, hi=hi, dual=dual)
        case "gspo":
            result = gspo(log, advantage, sample_index, mask, lo=lo, hi=hi)
        case "cispo":
            result = cispo(log, current, advantage, hi=hi)
        case "topr":
            result = topr(log, current, advantage, sample_index, mask)
        case "reinforce":
            result = reinforce(current, advantage)
        case "one_forward":
            result = one_forward(log, advantage)
        case _:
            assert_never(kind)
    return Objective(torch.where(mask, result.loss, 0.0), result.clipped & mask)


def clipped(log_ratio: Tensor, advantage: Tensor, *, lo: float, hi: float) -> Objective:
    """Clipped surrogate `-min(r A, clip(r, 1 - lo, 1 + hi) A)` (PPO, arXiv 1707.06347, eq. 7; GRPO,
    arXiv 2402.03300; asymmetric bounds as in DAPO, arXiv 2503.14476, eq. 8). Both inputs are
    [tokens]; `lo` in (0, 1), `hi` > 0."""
    r = ratio(log_ratio)
    bounded = r.clamp(1 - lo, 1 + hi)
    surrogate, limit = r * advantage, bounded * advantage
    return Objective(-torch.minimum(surrogate, limit), (limit < surrogate).detach())


def dual_clipped(
    log_ratio: Tensor, advantage: Tensor, *, lo: float, hi: float, dual: float
) -> Objective:
    """`clipped`, and where A < 0 at most `-dual A`: a ratio over `dual` > 1 + hi has no gradient
    there, however large (arXiv 1912.09729, with dual = 3)."""
    once = clipped(log_ratio, advantage, lo=lo, hi=hi)
    most = -dual * advantage
    above = ((advantage < 0) & (once.loss > most)).detach()
    return Objective(torch.where(above, most, once.loss), once.clipped | above)


def gspo(
    log_ratio: Tensor,
    advantage: Tensor,
    sample_index: Tensor,
    mask: Tensor,
    *,
    lo: float,
    hi: float,
) -> Objective:
    """`clipped` with the rollout's geometric mean ratio `s = exp(mean log_ratio)` over the mask, in
    its token form: every token's ratio has the value s, and the gradient of its own `log_ratio`
    times s (GSPO-token, arXiv 2507.18071). Where the advantage and the weight are the same in all
    of a rollout, that is the gradient of the rollout's own loss times its tokens. The paper's
    bounds are lo = 3e-4, hi = 4e-4."""
    mean = sum_by_rollout(log_ratio.detach(), mask, sample_index).mean[sample_index].float()
    return clipped(mean + (log_ratio - log_ratio.detach()), advantage, lo=lo, hi=hi)


def cispo(log_ratio: Tensor, current: Tensor, advantage: Tensor, *, hi: float) -> Objective:
    """`-sg(min(r, 1 + hi)) A current`: the weight is truncated, and no token loses its gradient
    (CISPO, MiniMax-M1, arXiv 2506.13585, where the lower bound is put out of reach)."""
    r = ratio(log_ratio.detach())
    return Objective(-r.clamp(max=1 + hi) * advantage * current, r > 1 + hi)


def topr(
    log_ratio: Tensor, current: Tensor, advantage: Tensor, sample_index: Tensor, mask: Tensor
) -> Objective:
    """`-w A current`, with w = 1 where A >= 0, and `min(exp(sum log_ratio), 1)` of the rollout,
    over the mask and without a gradient, where A < 0 (tapered off-policy REINFORCE, arXiv
    2503.14286). A rollout that the policy has left behind is pushed away no further."""
    total = sum_by_rollout(log_ratio.detach(), mask, sample_index).total[sample_index].float()
    negative = advantage < 0
    weight = torch.where(negative, ratio(total).clamp(max=1.0), 1.0)
    return Objective(-weight * advantage * current, negative & (total > 0))


def reinforce(current: Tensor, advantage: Tensor) -> Objective:
    """`-A current`: whatever is off-policy in it is left to the corrections' weights."""
    return Objective(-advantage * current, torch.zeros_like(current, dtype=torch.bool))


def one_forward(log_ratio: Tensor, advantage: Tensor) -> Objective:
    """`-r A`, with the gradient through r: with `log_ratio = current - behaviour` and a mask that
    IcePop left, that is `-M(k) A` of INTELLECT-3 (arXiv 2512.16144), which needs no other forward
    pass. Without such a mask nothing bounds r but e^20."""
    return Objective(-ratio(log_ratio) * advantage, torch.zeros_like(log_ratio, dtype=torch.bool))
