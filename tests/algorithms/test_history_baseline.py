"""Baselines from a prompt's history: summed over every group they leave the gradient as it is; with
the member's own reward in it, as published, V0.5's does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import pytest

from asyncrl.algorithms.advantages import Advantage, RewardedSamples
from asyncrl.algorithms.advantages.history_baseline import V05, HistoryBaseline, shrunk_to_history
from asyncrl.messages import PromptFacts, Sample

CHANCE, MEMBERS = 0.3, 4
PRIOR = PromptFacts(7, posterior=(1.0, 9.0))


def of(advantage: Advantage) -> Callable[[Sequence[float]], Sequence[float]]:
    def values(rewards: Sequence[float]) -> list[float]:
        samples = [Sample(n, 4, 1, 1, reward, [], member=n) for n, reward in enumerate(rewards)]
        given = RewardedSamples(samples, {4: list(rewards)}, {}, prompts={4: PRIOR})
        found = advantage.of(given)
        return [value for value in found if isinstance(value, float)]

    return values


def published(rewards: Sequence[float]) -> list[float]:
    """V0.5 with the member's own reward in the baseline."""
    return [reward - shrunk_to_history(rewards, PRIOR.solve_rate) for reward in rewards]


def expected(values: Callable[[Sequence[float]], Sequence[float]], members: int) -> float:
    """The mean over all groups of the gradient of the logit of a rollout's success."""
    total = 0.0
    for group in product((0.0, 1.0), repeat=members):
        chance = math.prod(CHANCE if reward else 1 - CHANCE for reward in group)
        for reward, value in zip(group, values(group), strict=True):
            total += chance * value * (reward - CHANCE) / members
    return total


@pytest.mark.parametrize("members", [1, MEMBERS])
@pytest.mark.parametrize("advantage", [HistoryBaseline(), V05()], ids=lambda one: one.kind)
def test_the_gradient_is_the_true_one(advantage: Advantage, members: int) -> None:
    assert expected(of(advantage), members) == pytest.approx(CHANCE * (1 - CHANCE), abs=1e-12)


def test_with_the_own_reward_it_is_smaller() -> None:
    assert round(expected(published, MEMBERS) / (CHANCE * (1 - CHANCE)), 3) == 0.826


def test_a_baseline_is_that_of_the_papers_formula() -> None:
    """With rewards -1 and 1, as the authors have them."""
    for rewards in product((0.0, 1.0), repeat=3):
        for p in (0.1, 0.5, 0.8):
            signs, history = [2 * reward - 1 for reward in rewards], 2 * p - 1
            mean = sum(signs) / 3
            gap = max(0.0, (mean - history) ** 2 - 1 / 3)
            w = gap / (gap + 1 / 3)
            by_hand = w * mean + (1 - w) * history
            assert 2 * shrunk_to_history(rewards, p) - 1 == pytest.approx(by_hand)
    assert shrunk_to_history([], 0.3) == 0.3


def test_a_member_without_a_number_is_refused() -> None:
    given = RewardedSamples([Sample(1, 4, 1, 1, 1.0, [])], {4: [1.0]}, {}, prompts={4: PRIOR})
    with pytest.raises(ValueError, match="does not name its member"):
        V05().of(given)
