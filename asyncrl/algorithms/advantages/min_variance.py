"""The baseline of least variance, and its approximation (VCPO, arXiv 2602.17616).

Invariant: the weight of a rollout is applied once, in the loss; here it says only how much its
reward counts in the baseline, where it enters as its square. Each group is compared with the
baseline under which the variance of `sum of w g (R - b)` is smallest, among baselines that are
given. This one is estimated from the group, the rollout's own reward and gradient among it, so it
is not unbiased: on a toy of eight rollouts the gradient is 25 % too small, where the plain mean
with the rollout itself costs 1/8 and the same weights over the others alone cost nothing
(`tests/staleness/test_selection.py`). The paper's formula is the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from asyncrl.algorithms.advantages.advantage import Advantage, RewardedSamples
from asyncrl.algorithms.tensors import Tensor
from asyncrl.messages import Sample


class MinVariance(Advantage):
    """`R - b` with `b = sum(w^2 |g|^2 R) / sum(w^2 |g|^2)` over the samples of the same group,
    the rollout itself included. Its gradient g costs a forward and a backward pass of its own.

    The baseline of two rewards, 1 and 0, of weights 1 and 3, is (1 * 1 + 9 * 0) / 10:

    >>> import torch
    >>> from asyncrl.messages import Sample
    >>> samples = [
    ...     Sample(rollout=n, group=4, prompt_tokens=1, response_tokens=1, reward=reward, spans=[])
    ...     for n, reward in enumerate([1.0, 0.0])
    ... ]
    >>> class Norms:
    ...     def exact(self):
    ...         return torch.tensor([1.0, 3.0]), torch.ones(2)
    >>> values = MinVariance().of(RewardedSamples(samples, {4: [1.0, 0.0]}, {}, Norms()))
    >>> [round(value, 3) for value in values]
    [0.9, -0.1]
    """

    kind: ClassVar[str] = "min_variance"
    needs_gradients: ClassVar[bool] = True

    def of(self, given: RewardedSamples) -> list[float]:
        assert given.gradients is not None
        return minimum_variance(given.samples, *given.gradients.exact())


class MinVarianceLogits(Advantage):
    """`MinVariance` with the sum of `vcpo.logit_norm` over a rollout's tokens in place of its
    gradient's squared norm: one forward pass, but an approximation.

    >>> MinVarianceLogits.needs_gradients, MinVarianceLogits.kind
    (True, 'min_variance_logits')
    """

    kind: ClassVar[str] = "min_variance_logits"
    needs_gradients: ClassVar[bool] = True

    def of(self, given: RewardedSamples) -> list[float]:
        assert given.gradients is not None
        return minimum_variance(given.samples, *given.gradients.from_logits())


def minimum_variance(
    samples: Sequence[Sample], weight: Tensor, norm_squared: Tensor
) -> list[float]:
    """Advantages `R - b` of the samples.

    `weight` w (>= 0) is the ratio of current to behaviour policy of a whole rollout, as it is: what
    the loss multiplies the rollout's tokens with is that only as far as no correction truncates it
    (VCPO's code has the raw ratio here, too). `norm_squared` |g|^2 (>= 0) is the squared norm of
    the gradient of the sum of its tokens' log-probabilities. Both are [samples], and all trained
    samples of a group must be here. Where no sample of a group has a gradient the baseline is the
    mean; where its rewards are all equal, compared exactly, the advantages are zeros. Raises
    ValueError for a weight or norm that is negative or not finite.
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
            baseline = _weighted_mean(rewards, [importance[place] for place in places])
            for place in places:
                values[place] = samples[place].reward - baseline
    return values


def _floats(values: Tensor) -> list[float]:
    numbers: list[float] = values.double().tolist()
    if not all(0 <= number < math.inf for number in numbers):
        raise ValueError("a weight or squared gradient norm is negative or no number")
    return numbers


def _log(number: float) -> float:
    return math.log(number) if number else -math.inf


def _weighted_mean(rewards: Sequence[float], importance: Sequence[float]) -> float:
    """Mean of the rewards, weighted by `exp(importance)`; evenly where all of that is 0."""
    largest = max(importance)
    shares = [1.0 if largest == -math.inf else math.exp(log - largest) for log in importance]
    return math.fsum(
        share * reward for share, reward in zip(shares, rewards, strict=True)
    ) / math.fsum(shares)
