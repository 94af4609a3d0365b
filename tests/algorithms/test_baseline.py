"""Baselines that depend on the others alone: the arithmetic, and on a toy whose reward depends on
length, bias and variance.

The toy: a group of N rollouts of length exp(theta + SIGMA e) with e normal; a rollout takes as long
as it is, and is judged when it ends. Its reward is 1 where e plus noise is below CUT, so shorter is
better. The gradient of the expected reward with respect to theta is known exactly, and an estimate
of it is the mean over a group of `(R - baseline) e / SIGMA`.
"""

import math
from collections.abc import Callable
from statistics import NormalDist, fmean
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from asyncrl.algorithms.advantages.baseline import Prior, first_k, shrunk

rewards = st.lists(st.floats(-1e3, 1e3), max_size=12)


class TestArithmetic:
    @given(
        rewards, st.integers(1, 12), st.floats(-1e3, 1e3), st.integers(0, 1000), st.floats(0, 100)
    )
    def test_equals_numpy(
        self, others: list[float], k: int, mean: float, seen: int, visits: float
    ) -> None:
        if k > len(others):
            with pytest.raises(ValueError, match=f"first {k} others"):
                shrunk(others, k, Prior(mean, seen), visits)
            return
        first, p = np.mean(others[:k]), min(visits, seen)
        assert first_k(others, k) == pytest.approx(first, abs=1e-9)
        assert shrunk(others, k, Prior(mean, seen), visits) == pytest.approx(
            (k * first + p * mean) / (k + p), abs=1e-9
        )

    @given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12), rewards, st.integers(1, 12))
    def test_who_is_judged_later_changes_nothing(
        self, others: list[float], later: list[float], k: int
    ) -> None:
        k = min(k, len(others))
        assert first_k(others + later, k) == first_k(others, k)

    def test_none_of_the_others_is_no_baseline(self) -> None:
        with pytest.raises(ValueError):
            first_k([1.0], 0)

    def test_a_prompt_seen_for_the_first_time_has_no_prior(self) -> None:
        assert shrunk([1.0, 0.0], 2, Prior(), visits=4) == 0.5
        assert shrunk([1.0, 0.0], 2, Prior(mean=1.0, seen=1), visits=4) == pytest.approx(2 / 3)


# ----------------------------------------------------------------------------------------- the toy

N, K, GROUPS = 8, 4, 12_000
SIGMA, CUT, NOISE = 1.0, 0.3, 0.5
Z = 4.9
"""Standard errors: what is unbiased is further off once in a million, and the seed is fixed
besides."""

Others = list[tuple[float, float]]
"""(length, reward) of the others, in the order in which they are judged."""

SPREAD = math.hypot(1, NOISE)
EXPECTED = NormalDist().cdf(CUT / SPREAD)
GRADIENT = -NormalDist().pdf(CUT / SPREAD) / SPREAD / SIGMA
"""Of `P(e + noise < CUT)`: raising theta by SIGMA lowers CUT by 1."""


def taken(length: float, others: Others) -> float:
    """Time at which a rollout may be taken: it is finished, and K of the others are judged."""
    return max(length, others[K - 1][0])


def so_far(reward: float, length: float, others: Others) -> list[float]:
    return [r for other, r in others if other <= taken(length, others)]


def rewards_of(others: Others) -> list[float]:
    return [reward for _, reward in others]


BASELINES: dict[str, Callable[[float, float, Others], float]] = {
    "leave one out": lambda reward, length, others: fmean(rewards_of(others)),
    "so far, without itself": lambda reward, length, others: fmean(so_far(reward, length, others)),
    "so far, with itself": lambda reward, length, others: fmean(
        [reward, *so_far(reward, length, others)]
    ),
    "all for the last, first k for the rest": lambda reward, length, others: (
        fmean(rewards_of(others)) if length > others[-1][0] else first_k(rewards_of(others), K)
    ),
    "first k": lambda reward, length, others: first_k(rewards_of(others), K),
    "half a prior": lambda reward, length, others: shrunk(
        rewards_of(others), K, Prior(EXPECTED, 100), visits=K
    ),
}


class Estimates(NamedTuple):
    """Of many groups, one number each, in units of the true gradient."""

    values: NDArray[np.float64]

    @property
    def bias(self) -> float:
        return float(self.values.mean()) - 1

    @property
    def noise(self) -> float:
        """Standard error of the bias."""
        return float(self.values.std(ddof=1)) / math.sqrt(len(self.values))

    @property
    def std(self) -> float:
        """In units of reward, as the gradient itself."""
        return float(self.values.std(ddof=1)) * abs(GRADIENT)


@pytest.fixture(scope="module")
def estimates() -> dict[str, Estimates]:
    """The same groups for every baseline."""
    random = np.random.default_rng(20261121)
    values: dict[str, list[float]] = {name: [] for name in BASELINES}
    for _ in range(GROUPS):
        e = np.sort(random.standard_normal(N))
        reward = (e + NOISE * random.standard_normal(N) < CUT).astype(float)
        score = (e / SIGMA).tolist()
        group: Others = list(zip(np.exp(SIGMA * e).tolist(), reward.tolist(), strict=True))
        members = [(*group[i], group[:i] + group[i + 1 :], score[i]) for i in range(N)]
        for name, baseline in BASELINES.items():
            values[name].append(
                fmean((r - baseline(r, length, others)) * s for length, r, others, s in members)
                / GRADIENT
            )
    return {name: Estimates(np.array(of_groups)) for name, of_groups in values.items()}


def table(estimates: dict[str, Estimates]) -> str:
    return "\n".join(
        f"{name:40} bias {e.bias:7.3f}  noise {e.noise:.3f}  std {e.std:.3f}"
        for name, e in estimates.items()
    )


class TestToy:
    @pytest.mark.parametrize("name", ["leave one out", "first k", "half a prior"])
    def test_what_depends_on_the_others_alone_is_unbiased(
        self, estimates: dict[str, Estimates], name: str
    ) -> None:
        assert estimates[name].noise < 0.006, table(estimates)
        assert abs(estimates[name].bias) < Z * estimates[name].noise, table(estimates)

    @pytest.mark.parametrize(
        "name",
        ["so far, without itself", "so far, with itself", "all for the last, first k for the rest"],
    )
    def test_how_many_are_judged_by_then_depends_on_the_rollout_and_is_biased(
        self, estimates: dict[str, Estimates], name: str
    ) -> None:
        """The last too: a slow rollout that finds all the others judged must not use what a fast
        one could not have waited for."""
        assert abs(estimates[name].bias) > 2 * Z * estimates[name].noise, table(estimates)
        assert abs(estimates[name].bias) > 0.03, table(estimates)

    def test_a_prior_shrinks_the_variance_back_to_the_whole_groups(
        self, estimates: dict[str, Estimates]
    ) -> None:
        """Paired over the same groups: the difference of squared deviations has a mean, and that a
        standard error."""
        first, half = (
            np.square(estimates[name].values - 1) for name in ("first k", "half a prior")
        )
        difference = first - half
        assert difference.mean() > Z * difference.std(ddof=1) / math.sqrt(GROUPS), table(estimates)
        assert (
            estimates["half a prior"].std
            < 1.05 * estimates["leave one out"].std
            < estimates["first k"].std
        ), table(estimates)

    def test_the_gradient_is_the_derivative_of_the_expected_reward(self) -> None:
        step = 1e-5
        ahead, behind = (
            NormalDist().cdf((CUT - theta / SIGMA) / SPREAD) for theta in (step, -step)
        )
        assert pytest.approx((ahead - behind) / (2 * step), rel=1e-6) == GRADIENT
