"""Selection, which no unbiased baseline mends. On a toy, how far the gradient is off where
what is trained, or what it is compared with, has to do with the rollout itself.

The toy: a group of N rollouts of length exp(e) with e normal; a rollout takes as long as it is, and
is judged when it ends. Its reward is 1 where e plus noise is below CUT, so shorter is better. Each
is compared with the first K judged of the others (`first_k`). The gradient with respect to the mean
of e is known; an estimate of it is the mean over all rollouts of `(R - baseline) e`, where what is
not trained counts 0. Biases are in shares of the gradient. The draws are always the same.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asyncrl.algorithms.advantages.baseline import first_k
from asyncrl.algorithms.advantages.min_variance import minimum_variance
from asyncrl.messages import Sample, Span
from asyncrl.staleness.lag import fresh_mask

N, K, GROUPS = 8, 2, 100_000
CUT, NOISE = 0.3, 0.5
Z = 4.9
"""Standard errors: what is unbiased is further off once in a million."""
SPREAD = math.hypot(1, NOISE)
GRADIENT = -NormalDist().pdf(CUT / SPREAD) / SPREAD

Table = NDArray[np.float64]


class Toy(NamedTuple):
    """Groups: `e` and `reward`, [groups, N]."""

    e: Table
    reward: Table

    @property
    def length(self) -> Table:
        return np.exp(self.e)

    def ends(self, slots: int) -> Table:
        """Ends of the rollouts, [groups, N], where an engine has so many slots and each rollout
        starts in the next one that is free."""
        free, ends = np.zeros((len(self.e), slots)), np.empty_like(self.e)
        for member in range(N):
            slot = free.argmin(axis=1)[:, None]
            ends[:, member] = np.take_along_axis(free, slot, 1)[:, 0] + self.length[:, member]
            np.put_along_axis(free, slot, ends[:, member, None], 1)
        return ends

    def advantage(self, judged: Table) -> Table:
        """`R - first_k`, [groups, N], where verdicts come at `judged` (infinite: never)."""
        order = judged.argsort(axis=1)
        reward = np.take_along_axis(self.reward, order, 1)
        found = np.empty_like(reward)
        for place in range(N):
            others = [other for other in range(N) if other != place][:K]
            found[:, place] = reward[:, place] - reward[:, others].mean(axis=1)
        advantage = np.empty_like(found)
        np.put_along_axis(advantage, order, found, 1)
        return advantage

    def estimates(self, advantage: Table, share: Table | float = 1.0) -> Table:
        """One estimate a group, in units of the gradient; `share` [groups, N] of each rollout is
        trained."""
        values: Table = (advantage * self.e * share).mean(axis=1) / GRADIENT
        return values


class Bias(NamedTuple):
    value: float
    noise: float

    @classmethod
    def of(cls, estimates: Table, truth: Table | float = 1.0) -> Bias:
        """Bias of the estimates, and the standard error of that; `truth` may be those of
        the same groups without a bias, which has much less noise."""
        off = estimates - truth
        return cls(float(off.mean()), float(off.std(ddof=1)) / math.sqrt(len(off)))

    @property
    def none(self) -> bool:
        return abs(self.value) < Z * self.noise


@pytest.fixture(scope="module")
def toy() -> Toy:
    random = np.random.default_rng(20261123)
    e = random.standard_normal((GROUPS, N))
    return Toy(e, (e + NOISE * random.standard_normal((GROUPS, N)) < CUT).astype(float))


@pytest.fixture(scope="module")
def fair(toy: Toy) -> Table:
    """Everything is judged and trained, as many at a time as there are."""
    return toy.estimates(toy.advantage(toy.length))


def test_the_table_is_first_k_of_the_product(toy: Toy) -> None:
    advantage = toy.advantage(toy.length)
    for group in range(50):
        order = toy.length[group].argsort()
        for member in range(N):
            others = [float(toy.reward[group, other]) for other in order if other != member]
            expected = toy.reward[group, member] - first_k(others, K)
            assert advantage[group, member] == pytest.approx(expected)


def test_where_all_is_judged_and_trained_the_baseline_is_unbiased(fair: Table) -> None:
    bias = Bias.of(fair)
    assert bias.none and bias.noise < 0.004, bias


def test_verdicts_of_others_that_are_lost_do_no_harm(toy: Toy) -> None:
    """The first member has its own, whatever became of the longer half of the others: each of those
    is lost with a chance of a half. Groups with fewer than K others left train nobody; which these
    are has nothing to do with the first member."""
    random = np.random.default_rng(1)
    lost = (toy.e > 0) & (random.random(toy.e.shape) < 0.5)
    lost[:, 0] = False
    enough = (~lost[:, 1:]).sum(axis=1) >= K
    judged = np.where(lost, np.inf, toy.length)
    first = toy.advantage(judged)[enough, 0] * toy.e[enough, 0] / GRADIENT
    bias = Bias.of(first)
    assert bias.none and bias.noise < 0.006, bias


def test_verdicts_that_are_lost_for_long_answers_select(toy: Toy, fair: Table) -> None:
    """Of the longest tenth every second one: a verifier that runs out of time, say."""
    random = np.random.default_rng(2)
    lost = (toy.e > NormalDist().inv_cdf(0.9)) & (random.random(toy.e.shape) < 0.5)
    advantage = toy.advantage(np.where(lost, np.inf, toy.length))
    bias = Bias.of(toy.estimates(advantage, ~lost), fair)
    assert -0.28 < bias.value < -0.21, bias


def test_leaving_out_the_longest_responses_as_stale_selects(toy: Toy, fair: Table) -> None:
    """The longest twentieth, whole: they waited for too many versions."""
    kept = toy.e < NormalDist().inv_cdf(0.95)
    bias = Bias.of(toy.estimates(toy.advantage(toy.length), kept), fair)
    assert -0.33 < bias.value < -0.23, bias


def test_masking_the_oldest_tokens_selects(toy: Toy, fair: Table) -> None:
    """A version every 100 tokens, lengths around 100, `max_lag` 4 and `on_stale` mask: about a
    twentieth of the responses loses its oldest tokens."""

    def share(tokens: int) -> float:
        starts = range(0, tokens, 100)
        spans = [Span(n, start, min(start + 100, tokens)) for n, start in enumerate(starts)]
        mask = np.frombuffer(fresh_mask(spans, len(spans) - 1, 4), np.uint8)
        assert len(mask) == tokens
        return float(mask.mean())

    tokens = np.ceil(100 * toy.length).astype(int)
    sizes, place = np.unique(tokens, return_inverse=True)
    shares = np.array([share(int(size)) for size in sizes])[place].reshape(tokens.shape)
    bias = Bias.of(toy.estimates(toy.advantage(toy.length), shares), fair)
    assert 0.04 < (shares < 1).mean() < 0.06
    assert -0.15 < bias.value < -0.1, bias


@pytest.mark.parametrize("slots", [3, 4])
def test_with_few_slots_a_rollouts_length_decides_when_its_siblings_start(
    slots: int, toy: Toy, fair: Table
) -> None:
    """And so which of them are judged first."""
    bias = Bias.of(toy.estimates(toy.advantage(toy.ends(slots))), fair)
    assert -0.045 < bias.value < -0.02 < -Z * bias.noise, bias


@pytest.mark.parametrize("slots", [N, 2 * N])
def test_with_a_slot_for_each_nothing_is_selected(slots: int, toy: Toy, fair: Table) -> None:
    assert np.array_equal(toy.estimates(toy.advantage(toy.ends(slots))), fair)


# ------------------------------------------------------------------------- a rollout's own reward


def test_the_baseline_of_least_variance_holds_the_rollouts_own_reward(toy: Toy) -> None:
    """Of one token each, so that the gradient's norm is |e|. The baseline of the same weights over
    the others alone has no bias, and the mean with the rollout itself the known one of 1 / N."""
    weight = np.square(toy.e)
    of_all, every = (
        (weight * toy.reward).sum(axis=1, keepdims=True),
        weight.sum(axis=1, keepdims=True),
    )
    for group in range(50):
        members = [
            Sample(n, 0, 1, 1, float(reward), []) for n, reward in enumerate(toy.reward[group])
        ]
        found = minimum_variance(members, torch.ones(N), torch.from_numpy(weight[group]))
        assert found == pytest.approx(toy.reward[group] - of_all[group] / every[group])
    with_itself = Bias.of(toy.estimates(toy.reward - of_all / every))
    of_others = Bias.of(
        toy.estimates(toy.reward - (of_all - weight * toy.reward) / (every - weight))
    )
    mean = Bias.of(toy.estimates(toy.reward - toy.reward.mean(axis=1, keepdims=True)))
    assert of_others.none, of_others
    assert -0.28 < with_itself.value < -0.21, with_itself
    assert abs(mean.value + 1 / N) < Z * mean.noise, mean
