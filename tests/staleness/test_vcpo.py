"""VCPO: the learning rate, the minimum-variance baseline and the logit proxy, against float64 and
against what they promise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algorithms.advantage_tensors import advantage_tensors
from asyncrl.algorithms.advantages import RewardedSamples
from asyncrl.config.loss_names import ADVANTAGES
from asyncrl.messages import Sample
from asyncrl.staleness import vcpo
from asyncrl.staleness.vcpo import learning_rate_scale, logit_norm, squared_norms


def samples(groups: list[int], rewards: list[float]) -> list[Sample]:
    return [
        Sample(place, group, 1, 1, reward, [])
        for place, (group, reward) in enumerate(zip(groups, rewards, strict=True))
    ]


class Norms:
    """Weights and squared norms of gradients that were measured before."""

    def __init__(self, weight: Tensor, norm_squared: Tensor) -> None:
        self._both = weight, norm_squared

    def exact(self) -> tuple[Tensor, Tensor]:
        return self._both

    from_logits = exact


def minimum_variance(batch: list[Sample], weight: Tensor, norm_squared: Tensor) -> Tensor:
    """By both names: what they have of the gradients is all that they differ in."""
    given = RewardedSamples(batch, {}, {}, Norms(weight, norm_squared))
    exact, approximate = (
        advantage_tensors(ADVANTAGES.find(kind)(), given)
        for kind in ("min_variance", "min_variance_logits")
    )
    assert torch.equal(exact.value, approximate.value) and exact.trainable.all()
    return exact.value


class TestLearningRate:
    @given(st.floats(1e-6, 1), st.floats(1e-6, 1))
    def test_is_the_formula(self, ess: float, base: float) -> None:
        scale = learning_rate_scale(ess, base)
        assert scale == pytest.approx(np.sqrt(np.minimum(1, ess / base))) and 0 < scale <= 1
        assert scale == 1 or ess < base

    def test_base_0_never_shrinks(self) -> None:
        assert learning_rate_scale(1e-9, 0.0) == 1.0


member = st.tuples(
    st.integers(0, 3),
    st.floats(-5, 5) | st.sampled_from([0.0, 1.0]),
    st.floats(0, 10) | st.sampled_from([0.0, math.exp(20), math.exp(-20)]),
    st.floats(0, 100) | st.sampled_from([0.0, 1e-12, 1e12]),
)


class TestMinimumVariance:
    @given(st.lists(member, min_size=1, max_size=14))
    def test_uneven_groups_equal_numpy(
        self, members: list[tuple[int, float, float, float]]
    ) -> None:
        groups, rewards, weights, norms = (list(column) for column in zip(*members, strict=True))
        got = minimum_variance(
            samples(groups, rewards),
            torch.tensor(weights, dtype=torch.float64),
            torch.tensor(norms, dtype=torch.float64),
        )
        assert got.dtype == torch.float32 and got.shape == (len(members),)
        for group in set(groups):
            inside = np.array(groups) == group
            r, w, n = (np.array(column)[inside] for column in (rewards, weights, norms))
            c = np.square(w.astype(np.longdouble)) * n
            baseline = (c * r).sum() / c.sum() if c.sum() else r.mean()
            expected = np.zeros(len(r)) if np.all(r == r[0]) else r - baseline
            assert got.numpy()[inside] == pytest.approx(expected.astype(float), rel=1e-5, abs=1e-6)

    def test_the_weight_is_squared_once_and_does_not_weigh_the_advantage(self) -> None:
        """By hand: (1 * 1 + 9 * 0) / 10. With w applied twice over it would be 1/82, or the
        advantages three times as large."""
        got = minimum_variance(samples([0, 0], [1.0, 0.0]), torch.tensor([1.0, 3.0]), torch.ones(2))
        assert got.tolist() == pytest.approx([0.9, -0.1])

    def test_without_a_gradient_it_is_the_mean(self) -> None:
        got = minimum_variance(samples([0, 0, 0], [3.0, 0.0, 0.0]), torch.ones(3), torch.zeros(3))
        assert got.tolist() == pytest.approx([2, -1, -1])

    def test_all_equal_is_no_signal(self) -> None:
        assert not minimum_variance(
            samples([0] * 3, [0.1] * 3),
            torch.tensor([0.3, 0.7, 1.9]),
            torch.tensor([1.0, 3.0, 7.0]),
        ).any()

    def test_no_float_is_too_small_or_large_to_count(self) -> None:
        tiny, huge = (
            torch.tensor([1e-200, 1e-250], dtype=torch.float64),
            torch.tensor([1e200, 1e300], dtype=torch.float64),
        )
        assert minimum_variance(
            samples([0, 0], [1.0, 0.0]), tiny, torch.ones(2)
        ).tolist() == pytest.approx([0, -1])
        assert minimum_variance(samples([0, 0], [1.0, 0.0]), huge, huge).tolist() == pytest.approx(
            [1, 0]
        )

    def test_of_nothing(self) -> None:
        assert minimum_variance([], torch.zeros(0), torch.zeros(0)).shape == (0,)

    @pytest.mark.parametrize("broken", [-1.0, math.nan, math.inf])
    def test_weights_and_norms_must_be_numbers(self, broken: float) -> None:
        for weight, norm in ((broken, 1.0), (1.0, broken)):
            with pytest.raises(ValueError, match="negative or not a number"):
                minimum_variance(samples([0], [1.0]), torch.tensor([weight]), torch.tensor([norm]))


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    p = np.exp(logits - logits.max())
    return np.asarray(p / p.sum())


class TestTabular:
    """A softmax policy over five actions, one token each, sampled from another one: every
    expectation is a sum of five terms."""

    ACTIONS = 5
    random = np.random.default_rng(7)
    logits, behaviour = random.normal(size=(2, ACTIONS))
    p, q, reward = softmax(logits), softmax(behaviour), random.normal(size=ACTIONS)
    weight = p / q
    score = np.eye(ACTIONS) - p  # gradient of each action's log-probability

    def variance(self, baseline: float, weight: NDArray[np.float64]) -> float:
        """Of `w g (R - b)` with actions of the behaviour policy: the trace of its covariance. Its
        mean is the same whatever b."""
        terms = (weight * (self.reward - baseline))[:, None] * self.score
        mean = self.q @ terms
        return float(self.q @ np.square(terms).sum(1) - mean @ mean)

    def baseline(self, weight: NDArray[np.float64]) -> float:
        """Values of the function for as many samples of each action as the behaviour policy has of
        it."""
        count = 20_000
        actions = np.repeat(np.arange(self.ACTIONS), np.rint(self.q * count).astype(int))
        norms = np.square(self.score).sum(1)[actions]
        batch = samples([0] * len(actions), self.reward[actions].tolist())
        advantages = minimum_variance(batch, torch.tensor(weight[actions]), torch.tensor(norms))
        return float(batch[0].reward - advantages[0])

    def test_no_baseline_has_less_variance(self) -> None:
        best = self.baseline(self.weight)
        least = self.variance(best, self.weight)
        for distance in (1e-3, 0.01, 0.1, 1.0):
            assert (
                self.variance(best + distance, self.weight)
                > least
                < self.variance(best - distance, self.weight)
            )
        candidates = [
            float(self.reward.mean()),
            float(self.p @ self.reward),
            float(self.q @ self.reward),
            self.baseline(self.weight**2),
        ]
        assert min(self.variance(other, self.weight) for other in candidates) > 1.001 * least

    def test_the_gradient_is_the_same_whatever_the_baseline(self) -> None:
        """Of the expected reward under the policy, and not under the one that sampled: that is what
        the weight is for, once."""
        exact = self.p * (self.reward - self.p @ self.reward)
        for baseline in (0.0, self.baseline(self.weight)):
            estimate = self.q @ ((self.weight * (self.reward - baseline))[:, None] * self.score)
            assert estimate == pytest.approx(exact)

    def test_for_one_token_the_proxy_is_exact(self) -> None:
        got = logit_norm(
            torch.tensor(self.logits).repeat(self.ACTIONS, 1), torch.arange(self.ACTIONS)
        )
        assert got.numpy() == pytest.approx(np.square(self.score).sum(1), rel=1e-6)


vocabulary = 7
rows = st.lists(
    st.tuples(
        st.lists(st.floats(-30, 30), min_size=vocabulary, max_size=vocabulary),
        st.integers(0, vocabulary - 1),
    ),
    min_size=1,
    max_size=9,
)


class TestLogitNorm:
    @given(rows, st.integers(1, 40))
    @example(
        [
            (
                [
                    1.5,
                    25.607850529190408,
                    3.6977639962233724,
                    1.0,
                    1e-262,
                    8.852346630226556,
                    7.049264599844605,
                ],
                0,
            )
        ],
        1,
    )  # 2 and a bit
    def test_is_the_formula_however_many_logits_are_taken_at_a_time(
        self, tokens: list[tuple[list[float], int]], chunk: int
    ) -> None:
        logits = torch.tensor([row for row, _ in tokens], dtype=torch.float64)
        ids = torch.tensor([token for _, token in tokens])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vcpo, "CHUNK", chunk)
            got = logit_norm(logits.float(), ids)
        assert got.dtype == torch.float32
        for row, token, value in zip(logits.numpy(), ids.tolist(), got.tolist(), strict=True):
            p = softmax(row.astype(np.float32).astype(np.float64))
            assert value == pytest.approx(
                1 - 2 * p[token] + np.square(p).sum(), rel=1e-4, abs=1e-14
            )
            assert 0 <= value <= 2

    def test_is_the_squared_norm_of_the_gradient(self) -> None:
        logits = torch.randn(4, 11, generator=torch.Generator().manual_seed(0), requires_grad=True)
        ids = torch.tensor([0, 10, 3, 3])
        torch.log_softmax(logits, -1).gather(1, ids[:, None]).sum().backward()
        assert logits.grad is not None
        assert torch.allclose(logit_norm(logits, ids), logits.grad.square().sum(1))

    def test_a_sure_token_keeps_its_digits(self) -> None:
        """1 - 2 p + sum of p^2 in float32 would be 0 or noise here."""
        p = 1 / (1 + math.exp(-20))
        got = logit_norm(torch.tensor([[20.0, 0.0]]), torch.tensor([0])).item()
        assert got == pytest.approx(2 * (1 - p) ** 2, rel=1e-4)

    def test_tokens_that_cannot_be(self) -> None:
        logits = torch.tensor([[0.0, -math.inf, 0.0], [0.0, -math.inf, 0.0]])
        assert logit_norm(logits, torch.tensor([0, 1])).tolist() == pytest.approx([0.5, 1.5])

    def test_is_float32_whatever_comes_and_leaves_the_logits_alone(self) -> None:
        logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
        rounded, kept = logits.bfloat16(), logits.clone()
        got = logit_norm(rounded, torch.tensor([0, 1, 2]))
        assert torch.equal(got, logit_norm(rounded.float(), torch.tensor([0, 1, 2])))
        logit_norm(logits, torch.tensor([0, 1, 2]))
        assert torch.equal(logits, kept)

    def test_of_nothing(self) -> None:
        assert logit_norm(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64)).shape == (0,)


class TestSquaredNorms:
    @given(
        st.lists(
            st.lists(st.tuples(st.floats(0, 2, width=32), st.booleans()), min_size=1, max_size=4),
            min_size=1,
            max_size=5,
        )
    )
    def test_sums_the_proxy_over_the_tokens_of_each_rollout(
        self, rollouts: list[list[tuple[float, bool]]]
    ) -> None:
        sample_index = torch.tensor(
            [place for place, rollout in enumerate(rollouts) for _ in rollout]
        )
        flat = [token for rollout in rollouts for token in rollout]
        norm, mask = torch.tensor([n for n, _ in flat]), torch.tensor([m for _, m in flat])
        batch = samples([0] * len(rollouts), [float(place) for place in range(len(rollouts))])
        weight = torch.linspace(0.5, 2, len(rollouts))
        sums = torch.tensor(
            [math.fsum(n for n, inside in rollout if inside) for rollout in rollouts],
            dtype=torch.float64,
        )
        norms = squared_norms(norm, mask, sample_index, len(batch))
        assert norms.dtype == torch.float64
        assert torch.allclose(
            minimum_variance(batch, weight, norms), minimum_variance(batch, weight, sums)
        )

    def test_what_is_masked_may_be_no_number(self) -> None:
        norm, mask = torch.tensor([1.0, math.nan, 1.0]), torch.tensor([True, False, True])
        norms = squared_norms(norm, mask, torch.tensor([0, 0, 1]), 2)
        got = minimum_variance(samples([0, 0], [1.0, 0.0]), torch.ones(2), norms)
        assert got.tolist() == pytest.approx([0.5, -0.5])
