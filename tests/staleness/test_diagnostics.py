"""Distance of two policies, in all and by lag, against the formulas in plain Python."""

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algorithms.ratios import LIMIT
from asyncrl.staleness.bins import BINS, at_lag, bin_of, of_lags
from asyncrl.staleness.diagnostics import ByLag, Divergence, by_lag


class Token(NamedTuple):
    log: float
    lag: int
    inside: bool
    kept: bool


tokens = st.builds(
    Token,
    st.floats(-2, 2, width=32) | st.sampled_from([100.0, -100.0, 20.0, 0.0]),
    st.integers(0, 40) | st.sampled_from([2**5 - 1, 2**5, 2**6 - 1, 2**6, 2**20, 2**40]),
    st.booleans(),
    st.booleans(),
)
Rollout = list[Token]
rollouts = st.lists(st.lists(tokens, min_size=1, max_size=5), min_size=1, max_size=6)


def measured(rollouts: list[Rollout]) -> ByLag:
    flat = [token for rollout in rollouts for token in rollout]
    sample_index = torch.tensor([index for index, rollout in enumerate(rollouts) for _ in rollout])
    log, lag, mask, kept = (torch.tensor(column) for column in zip(*flat, strict=True))
    return by_lag(log, mask, sample_index, lag, kept)


def exp(log: float) -> float:
    return math.exp(min(max(log, -LIMIT), LIMIT))


def k3(log: float) -> float:
    return exp(log) - min(max(log, -LIMIT), LIMIT) - 1


def reference(tokens: list[Token], weights: list[float]) -> Divergence:
    return Divergence(
        len(tokens),
        sum(abs(t.log) for t in tokens),
        sum(exp(t.log) for t in tokens),
        sum(k3(t.log) for t in tokens),
        len(weights),
        sum(weights),
        sum(w * w for w in weights),
        sum(exp(t.log) ** 2 for t in tokens),
        sum(t.kept for t in tokens),
    )


class TestByLag:
    @given(rollouts)
    def test_is_the_formulas_of_the_tokens_and_of_the_rollouts_of_each_bin(
        self, rollouts: list[Rollout]
    ) -> None:
        inside = [[t for t in rollout if t.inside] for rollout in rollouts]
        weights = [
            (max(t.lag for t in rollout), exp(sum(t.log for t in rollout)))
            for rollout in inside
            if rollout
        ]
        flat = [t for rollout in inside for t in rollout]
        got = measured(rollouts)
        assert tuple(got.total) == pytest.approx(
            tuple(reference(flat, [w for _, w in weights])), rel=1e-9, abs=1e-12
        )
        bins = {bin_of(t.lag) for t in flat}
        assert list(got.bins) == sorted(bins)
        for lag in bins:
            of_bin = (
                [t for t in flat if bin_of(t.lag) == lag],
                [w for oldest, w in weights if bin_of(oldest) == lag],
            )
            assert tuple(got.bins[lag]) == pytest.approx(
                tuple(reference(*of_bin)), rel=1e-9, abs=1e-12
            )

    @given(rollouts)
    def test_adds_up_however_rollouts_are_split(self, rollouts: list[Rollout]) -> None:
        total = ByLag()
        for rollout in rollouts:
            total = total.merge(measured([rollout]))
        assert torch.allclose(total.sums, measured(rollouts).sums, rtol=1e-12)

    @given(rollouts)
    def test_three_scalars_give_the_sample_size_of_all_trainers(
        self, rollouts: list[Rollout]
    ) -> None:
        """Each has some of the rollouts, and the mean of their sample sizes would be another
        number."""
        shares = [measured(part).total for part in (rollouts[::2], rollouts[1::2]) if part]
        count, weight, squared = (
            sum(column)
            for column in zip(
                *((s.rollouts, s.weight, s.weight_squared) for s in shares), strict=True
            )
        )
        whole = measured(rollouts).total
        assert whole.ess == pytest.approx(weight**2 / (count * squared) if count else 1.0)
        assert 0 < whole.ess <= 1 + 1e-12

    def test_tokens_and_rollouts_of_a_bin_are_others_tokens_and_rollouts(self) -> None:
        """A rollout over two versions: its young token counts at lag 0 and its weight at lag 3."""
        got = measured(
            [[Token(0.5, 3, True, True), Token(1.0, 0, True, False)], [Token(0.0, 0, True, True)]]
        )
        metrics = got.metrics()
        assert of_lags(metrics, "tokens") == {0: 2, 3: 1}
        assert of_lags(metrics, "rollouts") == {0: 1, 3: 1}
        assert of_lags(metrics, "kept_fraction") == {0: 0.5, 3: 1}
        assert of_lags(metrics, "log_ratio_abs") == pytest.approx({0: 0.5, 3: 0.5})
        assert of_lags(metrics, "k3") == pytest.approx(
            {0: (math.e - 2) / 2, 3: math.exp(0.5) - 1.5}
        )
        assert of_lags(metrics, "chi2_token") == pytest.approx(
            {0: (math.e**2 + 1) / 2 - 1, 3: math.e - 1}
        )
        assert got.bins[3].weight == pytest.approx(math.exp(1.5))

    def test_a_bin_without_rollouts_has_no_sample_size(self) -> None:
        metrics = measured([[Token(0.0, 1, True, True), Token(0.0, 0, True, True)]]).metrics()
        assert of_lags(metrics, "tokens") == {0: 1, 1: 1}
        assert of_lags(metrics, "ess") == of_lags(metrics, "rollouts") == {1: 1}

    def test_the_lag_of_a_rollout_is_of_the_tokens_that_are_in(self) -> None:
        got = measured([[Token(0.0, 9, False, True), Token(0.0, 2, True, True)]])
        assert list(got.bins) == [2] and got.bins[2].rollouts == 1

    def test_tokens_newer_than_the_policy_cannot_be(self) -> None:
        with pytest.raises(ValueError, match="a lag of -1"):
            measured([[Token(0.0, -1, True, True)]])

    def test_carries_no_gradient(self) -> None:
        log, one = torch.tensor([0.1], requires_grad=True), torch.tensor([True])
        zero = torch.tensor([0])
        assert not by_lag(log, one, zero, zero, one).sums.requires_grad


class TestMeans:
    def test_of_nothing(self) -> None:
        for empty in (ByLag(), measured([[Token(0.3, 1, False, False)]])):
            assert empty.total.means() == {
                "log_ratio_abs": 0.0,
                "ratio_mean": 1.0,
                "k3": 0.0,
                "chi2_token": 0.0,
                "ess": 1.0,
            }
            assert empty.total.kept_fraction == 1.0
            assert empty.bins == empty.metrics() == {}

    @given(rollouts)
    def test_are_sums_over_counts(self, rollouts: list[Rollout]) -> None:
        flat = [t for rollout in rollouts for t in rollout if t.inside]
        if flat:
            assert measured(rollouts).total.means() == pytest.approx(
                {
                    "log_ratio_abs": sum(abs(t.log) for t in flat) / len(flat),
                    "ratio_mean": sum(exp(t.log) for t in flat) / len(flat),
                    "k3": sum(k3(t.log) for t in flat) / len(flat),
                    "chi2_token": sum(exp(t.log) ** 2 for t in flat) / len(flat) - 1,
                    "ess": measured(rollouts).total.ess,
                },
                rel=1e-9,
                abs=1e-12,
            )

    def test_masked_tokens_do_not_reach_the_sequence_weights(self) -> None:
        """Trap 4."""
        masked = [Token(0.1, 0, True, True), Token(9.0, 0, False, False)]
        assert measured([masked, [Token(0.1, 0, True, True)]]).total.ess == pytest.approx(1.0)

    def test_is_of_raw_weights(self) -> None:
        """Of weights clamped to [1/C, C] the effective sample size could not fall below 0.64 at C =
        2."""
        rollouts = [[Token(log, 0, True, True)] for log in [5.0] + [0.0] * 9]
        assert measured(rollouts).total.ess < 0.12


class TestBins:
    @given(st.integers(0, 2**30))
    def test_a_bin_is_named_by_its_smallest_lag(self, lag: int) -> None:
        low = bin_of(lag)
        assert low <= lag and (low == lag if lag < 32 else lag < 2 * low or low == BINS[-1])
        assert of_lags(
            {at_lag("k3", lag): 1.5, "k3": 2.0, at_lag("k", lag): 3.0, at_lag("xk3", lag): 4.0},
            "k3",
        ) == {low: 1.5}

    def test_are_few_and_ascending(self) -> None:
        assert list(BINS) == sorted(set(BINS)) and BINS[0] == 0 and len(BINS) == 48
