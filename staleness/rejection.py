"""Which tokens stay out of the loss. Invariant: what is kept is inside of the bounds, both
included, and a bound is met in logarithms: nothing is exponentiated to be rejected.

All take `tokens` and the mask left by the corrections before, and see nothing outside of that mask.
What is kept has weight 1, or its ratio where that is said.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from staleness.ratios import LIMIT, ratio
from staleness.tokens import Correction, Tokens, sum_by_rollout, count_rollouts

CERTAIN = 1e-6
"""KPop: a token is never surer than this from 1; float32 log-probabilities cannot tell it, and the
divergence from 1 is infinite."""


def icepop(tokens: Tokens, mask: Tensor, *, lo: float, hi: float) -> Correction:
    """IcePop (arXiv 2510.18855): a token is kept, and has its ratio as its weight, where `lo <=
    exp(l) <= hi`, with `lo` in (0, 1] and `hi` >= 1. Diagnostics: tokens `below` and `above` the
    band."""
    log = tokens.log_ratio.detach()
    below, above = mask & (log < math.log(lo)), mask & (log > math.log(hi))
    return _measured(log, mask & ~below & ~above, {"below": below.sum(), "above": above.sum()})


def kpop(tokens: Tokens, mask: Tensor, *, hi: float) -> Correction:
    """KPop (Guo et al. 2026, "Taming training-inference mismatch with adaptive masking regions"): a
    token is kept, and has its ratio as its weight, where the binary KL divergence `D(p, q) = p
    log(p/q) + (1 - p) log((1 - p)/(1 - q))` is at most `hi` > 0 nats both ways, with q the token's
    behaviour probability and `p = q exp(l)`. Probabilities are bounded at 1 - 1e-6 from above. The
    blog's weight is the ratio, as is that of AReaL and prime-rl."""
    log = tokens.log_ratio.detach()
    behaviour = torch.where(mask, tokens.behaviour.detach(), -1.0).double()
    most = math.log1p(-CERTAIN)
    p, q = (behaviour + log).clamp(max=most), behaviour.clamp(max=most)
    kept = mask & (_binary_kl(p, q) <= hi) & (_binary_kl(q, p) <= hi)
    return _measured(log, kept, {})


def mis(tokens: Tokens, mask: Tensor, *, lo: float, hi: float) -> Correction:
    """Masked importance sampling: a rollout is kept, and all its tokens have `exp(sum l)` as their
    weight, where `lo <= exp(sum l) <= hi`, with `lo` in (0, 1] and `hi` >= 1 (verl's sequence-level
    rejection by ratio, with the bounds as its documentation has them). Diagnostics: `rollouts`
    rejected."""
    total = sum_by_rollout(tokens.log_ratio.detach(), mask, tokens.sample_index).total
    inside = (total >= math.log(lo)) & (total <= math.log(hi))
    kept, diagnostics = _whole(inside, tokens, mask)
    return _measured(total[tokens.sample_index], kept, diagnostics)


def geometric_mask(tokens: Tokens, mask: Tensor, *, lo: float, hi: float) -> Correction:
    """A rollout is kept where `lo <= exp(mean l) <= hi`, with `lo` in (0, 1] and `hi` >= 1. Its
    weight is 1, as in verl and SkyRL, so that any weight may follow: `geometric_tis` with the same
    bounds gives the masked geometric ratio. Diagnostics: `rollouts` rejected."""
    mean = sum_by_rollout(tokens.log_ratio.detach(), mask, tokens.sample_index).mean
    return _plain(*_whole((mean >= math.log(lo)) & (mean <= math.log(hi)), tokens, mask))


def k3(tokens: Tokens, mask: Tensor, *, hi: float) -> Correction:
    """A rollout is kept where the mean of `exp(l) - l - 1`, an estimate of the KL divergence of
    behaviour from proximal policy (Schulman 2020, "Approximating KL divergence"), is at most `hi` >
    0 nats (verl). Diagnostics: `rollouts` rejected."""
    log = tokens.log_ratio.detach().double().clamp(-LIMIT, LIMIT)
    mean = sum_by_rollout(torch.expm1(log) - log, mask, tokens.sample_index).mean
    return _plain(*_whole(mean <= hi, tokens, mask))


def dppo(tokens: Tokens, mask: Tensor, *, lo: float, hi: float) -> Correction:
    """DPPO with binary total variation (arXiv 2602.04879, eq. 12): a token is rejected where its
    probability has risen by more than `hi` and its advantage is positive, or has fallen by more
    than `lo` and its advantage is negative: an update would take it further. Both bounds in (0, 1],
    from behaviour to current. (prime-rl also rejects where the advantage is 0.) Diagnostics: tokens
    `risen`, `fallen`."""
    current, behaviour = (
        torch.where(mask, log.detach(), 0.0).double().exp()
        for log in (tokens.current, tokens.behaviour)
    )
    moved = current - behaviour
    risen, fallen = (
        mask & (tokens.advantage > 0) & (moved > hi),
        mask & (tokens.advantage < 0) & (moved < -lo),
    )
    return _plain(mask & ~risen & ~fallen, {"risen": risen.sum(), "fallen": fallen.sum()})


def opsm(tokens: Tokens, mask: Tensor, *, hi: float) -> Correction:
    """Off-policy sequence masking (DeepSeek-V3.2, arXiv 2512.02556): a rollout of negative
    advantage is rejected where the mean of `behaviour - current` is over `hi` > 0 nats.
    Diagnostics: `rollouts` rejected."""
    fall = (
        torch.where(mask, tokens.behaviour, 0.0).double()
        - torch.where(mask, tokens.current.detach(), 0.0).double()
    )
    left = sum_by_rollout(fall, mask, tokens.sample_index).mean > hi
    kept = mask & ~(left[tokens.sample_index] & (tokens.advantage < 0))
    return _plain(kept, {"rollouts": count_rollouts(mask & ~kept, tokens.sample_index)})


def m2po(tokens: Tokens, mask: Tensor, *, hi: float) -> Correction:
    """M2PO (arXiv 2510.01161, algorithm 1): of the tokens that a trust region is for (ratio of
    current to behaviour over 1 and a positive advantage, or under 1 and a negative one), those of
    the largest `(current - behaviour)^2` are rejected, one by one, until the mean over the rest of
    them is at most `hi` > 0. Other tokens are kept. (AReaL has all tokens in the mean.)

    The mean is over each rollout, and the paper's over a batch: what is kept must not depend on how
    a step is split into calls. Where the bound holds in every rollout it holds in the step, at the
    price of more tokens. One `sample_index` for all tokens is the paper's set. Diagnostics: `region`
    tokens, and the sum of `squares` of those of them kept.
    """
    log = (
        torch.where(mask, tokens.current.detach(), 0.0).double()
        - torch.where(mask, tokens.behaviour, 0.0).double()
    )
    region = mask & (log * tokens.advantage > 0)
    # The region of each rollout in a row, smallest squares first: the mean of the first k grows
    # with k, so the first ones are allowed.
    places = region.nonzero().squeeze(1)
    places = places[log[places].abs().argsort(stable=True)]
    places = places[tokens.sample_index[places].argsort(stable=True)]
    sample_index, squares = tokens.sample_index[places], log[places].square()
    start = torch.searchsorted(sample_index, sample_index)
    number = torch.arange(1, len(places) + 1, dtype=torch.float64, device=places.device) - start
    before = torch.cat([squares.new_zeros(1), squares.cumsum(0)])
    kept = mask.clone()
    kept[places] = before[1:] - before[start] <= hi * number
    return _plain(
        kept,
        {"region": region.sum(), "squares": torch.where(kept & region, log.square(), 0.0).sum()},
    )


def _binary_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """`D(p, q)` of two log-probabilities under 0, in nats."""
    other_p, other_q = -torch.expm1(log_p), -torch.expm1(log_q)
    return log_p.exp() * (log_p - log_q) + other_p * (other_p.log() - other_q.log())


def _whole(inside: Tensor, tokens: Tokens, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The mask without the rollouts that are not `inside` (bool [rollouts])."""
    kept = mask & inside[tokens.sample_index]
    return kept, {"rollouts": count_rollouts(mask & ~kept, tokens.sample_index)}


def _plain(kept: Tensor, diagnostics: dict[str, Tensor]) -> Correction:
    return Correction(kept.float(), kept, diagnostics)


def _measured(log: Tensor, kept: Tensor, diagnostics: dict[str, Tensor]) -> Correction:
    """Replaced before `exp`: what is rejected may be huge, and 0 * inf is NaN."""
    return Correction((ratio(torch.where(kept, log, 0.0)) * kept).float(), kept, diagnostics)
