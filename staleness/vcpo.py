"""Learning at high lag (VCPO, arXiv 2602.17616). Invariant: the weight of a rollout is applied
once, in the loss; here it says only how much its reward counts in the baseline, where it enters as
its square.

With heavy importance weights few rollouts make the gradient. The step is then shortened by what is
left of the sample size, and each group is compared with the baseline under which the variance of
`sum of w g (R - b)` is smallest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.ipc.messages import Sample

CHUNK = 2**22
"""Largest number of logits that are turned into float32 at a time: 16 MiB."""


def learning_rate_scale(ess: float, base: float) -> float:
    """Factor `sqrt(min(1, ess / base))` of the learning rate, in [0, 1]. `ess` is the sequence
    effective sample size of the step's raw weights, as a share of its rollouts, in (0, 1]; `base`
    in [0, 1] is what is normal. Base 0: always 1."""
    return 1.0 if base == 0 else math.sqrt(min(1.0, ess / base))


def minimum_variance(samples: Sequence[Sample], weight: Tensor, norm_squared: Tensor) -> Tensor:
    """Advantages `R - b` with `b = sum(w^2 |g|^2 R) / sum(w^2 |g|^2)` over the samples of the same
    group, float32 [samples].

    `weight` w (>= 0) is what the loss multiplies a rollout's tokens with, once; `norm_squared`
    |g|^2 (>= 0) is the squared norm of the gradient of the sum of its tokens' log-probabilities.
    Both are [samples], and all trained samples of a group must be here. Where no sample of a group
    has a gradient the baseline is the mean; where its rewards are all equal, compared exactly, the
    advantages are zeros. Raises ValueError for a weight or norm that is negative or not finite.
    """
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for place, sample in enumerate(samples):
        groups[sample.group].append(place)
    importance = [
        2 * _log(w) + _log(n) for w, n in zip(_floats(weight), _floats(norm_squared), strict=True)
    ]
    values = [0.0] * len(samples)
    for places in groups.values():
        rewards = [samples[place].reward for place in places]
        if any(reward != rewards[0] for reward in rewards):
            baseline = _mean(rewards, [importance[place] for place in places])
            for place in places:
                values[place] = samples[place].reward - baseline
    return torch.tensor(values, dtype=torch.float32)


def minimum_variance_logits(
    samples: Sequence[Sample],
    weight: Tensor,
    token_norm: Tensor,
    mask: Tensor,
    sample_index: Tensor,
) -> Tensor:
    """As `minimum_variance`, with the sum of `logit_norm` over a rollout's tokens of the mask in
    place of its gradient's squared norm: no backward pass for each rollout, but an approximation.

    `token_norm` (float32), `mask` (bool) and `sample_index` (int64, the place of its sample) are [tokens].
    """
    norms = torch.zeros(len(samples), dtype=torch.float64, device=token_norm.device)
    return minimum_variance(
        samples,
        weight,
        norms.index_add(0, sample_index, torch.where(mask, token_norm, 0.0).double()),
    )


@torch.no_grad()
def logit_norm(logits: Tensor, ids: Tensor) -> Tensor:
    """`1 - 2 p + sum over v of p_v^2`, float32 [tokens]: the squared norm of the gradient of each
    token's log-probability with respect to its logits, in [0, 2]. `logits` is [tokens, vocabulary],
    of any float type, already divided by the temperature; `ids` is int64 [tokens].
    """
    rows = max(1, CHUNK // logits.shape[-1])
    return torch.cat(
        [
            _logit_norm(some, of_some)
            for some, of_some in zip(torch.split(logits, rows), torch.split(ids, rows), strict=True)
        ]
    )


def _logit_norm(logits: Tensor, ids: Tensor) -> Tensor:
    # (1 - p)^2 + the others' squares is the same sum without a difference of nearly equal numbers,
    # which at p near 1 is all that is left.
    others = torch.softmax(logits, -1, dtype=torch.float32).scatter_(1, ids[:, None], 0.0)
    rest = others.sum(-1)
    return (rest.square() + others.square_().sum(-1)).clamp_(
        max=2.0
    )  # probabilities in float32 may sum to a little over 1


def _floats(values: Tensor) -> list[float]:
    numbers: list[float] = values.double().tolist()
    if not all(0 <= number < math.inf for number in numbers):
        raise ValueError("a weight or squared gradient norm is negative or no number")
    return numbers


def _log(number: float) -> float:
    return math.log(number) if number else -math.inf


def _mean(rewards: Sequence[float], importance: Sequence[float]) -> float:
    """Mean of the rewards, weighted by `exp(importance)`; evenly where all of that is 0."""
    largest = max(importance)
    shares = [1.0 if largest == -math.inf else math.exp(log - largest) for log in importance]
    return math.fsum(
        share * reward for share, reward in zip(shares, rewards, strict=True)
    ) / math.fsum(shares)
