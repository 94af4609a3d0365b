"""The policy that an update stays close to. Invariant: proximal log-probabilities have no gradient,
and are of the token's own version wherever that version was scored.

"Missing old logits" (arXiv 2605.12070): `current / behaviour = (proximal / behaviour) * (current /
proximal)`. With the proximal policy the trainer's own at the version that sampled the token, the
first ratio is what engine and trainer disagree on, which corrections are for, and the second is
what the policy has learned since, which the objective bounds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.ratios import log_ratio


class LogRatios(NamedTuple):
    """`log_ratio`: float32 [tokens], `current - proximal`, with the gradient of `current`.
    `mismatch`: float32 [tokens], without a gradient, `proximal - behaviour`; `current - behaviour`
    where there is no proximal policy. Both are 0, without a gradient, where not `finite` (bool
    [tokens]).

    The policy has learned 0.5 since the version that sampled, and engine and trainer disagree by
    0.25 about that version:

    >>> current, behaviour, proximal = (torch.tensor([log]) for log in (-1.0, -1.75, -1.5))
    >>> found = log_ratios(current, behaviour, proximal)
    >>> found.log_ratio.item(), found.mismatch.item()
    (0.5, 0.25)
    """

    log_ratio: Tensor
    mismatch: Tensor
    finite: Tensor


def log_ratios(current: Tensor, behaviour: Tensor, proximal: Tensor | None) -> LogRatios:
    """The two factors of `current / behaviour`, from log-probabilities, [tokens] each. None is the
    two-policy form (`behaviour`): both are the whole ratio, so that a weight on top would count it
    twice. Where a log-probability is NaN or infinite the token is not finite."""
    if proximal is None:
        whole, finite = log_ratio(current, behaviour)
        return LogRatios(whole, whole.detach(), finite)
    proximal = proximal.detach()
    finite = torch.isfinite(current) & torch.isfinite(behaviour) & torch.isfinite(proximal)
    learned = log_ratio(torch.where(finite, current, 0.0), torch.where(finite, proximal, 0.0)).value
    mismatch = log_ratio(
        torch.where(finite, proximal, 0.0), torch.where(finite, behaviour, 0.0)
    ).value
    return LogRatios(learned, mismatch.detach(), finite)


def recompute(current: Tensor) -> Tensor:
    """`recompute`: the weights that the step starts from. Where a step is one update those are the
    current ones: the ratio is 1, and clipping does nothing."""
    return current.detach()


def scored(scores: Tensor, current: Tensor, lag: Tensor) -> Tensor:
    """`boundary` and `snapshot`: the trainer's own log-probabilities under each token's version; at
    lag 0 those are the current ones.

    All are [tokens]; `scores` is float32, of the tokens with a lag, NaN where there is none (that
    token is not finite to `log_ratios`)."""
    return torch.where(lag == 0, current.detach(), scores)


def loglinear(behaviour: Tensor, current: Tensor, lag: Tensor) -> Tensor:
    """`loglinear` (AReaL): `behaviour + alpha (current - behaviour)`, a guess at the version before
    the current one that costs no forward pass. All are [tokens]; see `alpha`."""
    current = current.detach().float()
    return behaviour.float() + alpha(lag) * (current - behaviour.float())


def alpha(lag: Tensor) -> Tensor:
    """Place of the proximal version on the way from the behaviour version to the current one:
    `(v_proximal - v_behaviour) / lag`, with `v_proximal` the version before the current one, but
    none before the behaviour version. float32 [tokens] in [0, 1): 0 at lags 0 and 1, 1 - 1/lag
    beyond. `lag`: int64 >= 0.

    >>> alpha(torch.tensor([0, 1, 2, 4])).tolist()
    [0.0, 0.0, 0.5, 0.75]
    """
    return 1 - 1 / lag.clamp(min=1).float()
