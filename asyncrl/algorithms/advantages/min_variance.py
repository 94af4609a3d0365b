"""The minimum-variance baseline, and its approximation (VCPO, arXiv 2602.17616).

Invariant: the weight of a rollout is applied once, in the loss; here, squared, it only weights its
reward in the baseline. Each group is compared with the baseline under which the variance of `sum of
w g (R - b)` is smallest, among fixed baselines. This one is estimated from the group, including the
rollout's own reward and gradient, so it is biased: on a toy of eight rollouts the gradient is 25 %
too small, where the plain mean including the rollout loses 1/8, and the same weights over the
others alone lose nothing (`tests/staleness/test_selection.py`). The paper's formula is the same.
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

    def of(self, batch: RewardedSamples) -> list[float]:
        assert batch.gradients is not None
        return minimum_variance(batch.samples, *batch.gradients.exact())


class MinVarianceLogits(Advantage):
    """`MinVariance` with the sum of `vcpo.logit_norm` over a rollout's tokens in place of its
    gradient's squared norm: one forward pass, but an approximation.

    >>> MinVarianceLogits.needs_gradients, MinVarianceLogits.kind
    (True, 'min_variance_logits')
    """

    kind: ClassVar[str] = "min_variance_logits"
    needs_gradients: ClassVar[bool] = True

    def of(self, batch: RewardedSamples) -> list[float]:
        assert batch.gradients is not None
        return minimum_variance(batch.samples, *batch.gradients.from_logits())


def minimum_variance(
    samples: Sequence[Sample], weight: Tensor, norm_squared: Tensor
) -> list[float]:
    """Advantages `R - b` of the samples.

    `weight` w (>= 0) is the raw ratio of current to behaviour policy of a whole rollout, also where
    a correction truncates it in the loss (VCPO's code uses the raw ratio here, too). `norm_squared`
    |g|^2 (>= 0) is the squared norm of the gradient of the sum of its tokens' log-probabilities.
    Both are [samples], and all trained samples of a group must be here. Where no sample of a group
    has a gradient the baseline is the mean; where its rewards are all equal, compared exactly, the
    advantages are zeros. Raises ValueError for a weight or norm that is negative or not finite.
    """
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for number, sample in enumerate(samples):
        groups[sample.group].append(number)
    importance = [
        2 * _log(w) + _log(n) for w, n in zip(_floats(weight), _floats(norm_squared), strict=True)
    ]
    values = [0.0] * len(samples)
    for members in groups.values():
        rewards = [samples[member].reward for member in members]
        if any(reward != rewards[0] for reward in rewards):
            baseline = _weighted_mean(rewards, [importance[member] for member in members])
            for member in members:
                values[member] = samples[member].reward - baseline
    return values


def _floats(values: Tensor) -> list[float]:
    numbers: list[float] = values.double().tolist()
    if not all(0 <= number < math.inf for number in numbers):
        raise ValueError("a weight or squared gradient norm is negative or not a number")
    return numbers


def _log(number: float) -> float:
    return math.log(number) if number else -math.inf


def _weighted_mean(rewards: Sequence[float], importance: Sequence[float]) -> float:
    """Mean of the rewards, weighted by `exp(importance)`; the plain mean where all weights are
    0."""
    largest = max(importance)
    shares = [1.0 if largest == -math.inf else math.exp(log - largest) for log in importance]
    return math.fsum(
        share * reward for share, reward in zip(shares, rewards, strict=True)
    ) / math.fsum(shares)
