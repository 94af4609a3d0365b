"""Weights of groups: they multiply by what was known at the admission, and each prompt's gradient
keeps its direction. A toy of two prompts is summed over every group that there can be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

import pytest

from asyncrl.algorithms.advantage_tensors import advantage_tensors, sample_weights
from asyncrl.algorithms.advantages import RewardedSamples, Rloo
from asyncrl.algorithms.advantages.group_weight import EqualWeight, GroupWeight
from asyncrl.algorithms.advantages.paced import Paced
from asyncrl.messages import PromptFacts, Sample

CHANCES = (0.2, 0.7)
"""Chances that a rollout of either prompt solves it; the logit is the policy's only weight."""
POSTERIORS = ((2.0, 6.0), (4.0, 1.0))
MEMBERS = 3


def batch(rewards: Mapping[int, list[float]]) -> RewardedSamples:
    samples = [
        Sample(0, group, 1, 1, reward, [], member=member)
        for group, of_group in rewards.items()
        for member, reward in enumerate(of_group)
    ]
    prompts = {group: PromptFacts(group, "", posterior=POSTERIORS[group]) for group in rewards}
    return RewardedSamples(samples, rewards, {}, prompts=prompts)


def expected(weight: GroupWeight) -> list[float]:
    """The mean over all groups of the gradient of each prompt's logit."""
    totals = []
    for prompt, chance in enumerate(CHANCES):
        total = 0.0
        for group in product((0.0, 1.0), repeat=MEMBERS):
            given = batch({prompt: list(group)})
            values = advantage_tensors(Rloo(), given).value * sample_weights(weight, given)
            probability = math.prod(chance if solved else 1 - chance for solved in group)
            for solved, value in zip(group, values.double().tolist(), strict=True):
                total += probability * value * (solved - chance) / MEMBERS
        totals.append(total)
    return totals


def test_each_prompts_gradient_is_the_true_one_times_its_weight() -> None:
    true = [chance * (1 - chance) for chance in CHANCES]
    assert expected(EqualWeight()) == pytest.approx(true, abs=1e-7)
    weights = [a / (a + b) * b / (a + b) for a, b in POSTERIORS]
    by_hand = [weight * slope for weight, slope in zip(weights, true, strict=True)]
    assert expected(Paced()) == pytest.approx(by_hand, abs=1e-7)
    assert weights == pytest.approx([0.1875, 0.16])


class Given(GroupWeight):
    """These weights, whatever they are."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        self._weights = weights

    def of(self, given: RewardedSamples) -> Mapping[int, float]:
        return self._weights


@pytest.mark.parametrize("wrong", [-0.5, math.nan, math.inf, "1", None, True])
def test_a_weight_that_is_none_is_refused_by_its_group(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"the weight of group 1 is .*; return a finite number"):
        sample_weights(Given({1: wrong}), batch({1: [1.0]}))


def test_a_group_without_a_weight_has_one() -> None:
    assert sample_weights(Given({1: 0.0}), batch({0: [1.0, 0.0], 1: [1.0]})).tolist() == [1, 1, 0]
