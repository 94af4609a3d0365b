"""How far apart two policies are, in all and by lag, against the formulas in plain Python."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staleness.diagnostics import Divergence, divergence


class TestDivergence:
    @given(st.lists(st.lists(st.tuples(st.floats(-1, 1, width=32), st.booleans()), min_size=1, max_size=5), min_size=1, max_size=5))
    def test_is_the_formulas_however_rollouts_are_split(self, rollouts: list[list[tuple[float, bool]]]) -> None:
        total = Divergence()
        for rollout in rollouts:
            log, mask = torch.tensor([v for v, _ in rollout]), torch.tensor([m for _, m in rollout])
            total = total.merge(divergence(log, mask, torch.zeros(len(rollout), dtype=torch.int64)))
        flat = [pair for rollout in rollouts for pair in rollout]
        owner = torch.tensor([index for index, rollout in enumerate(rollouts) for _ in rollout])
        whole = divergence(torch.tensor([v for v, _ in flat]), torch.tensor([m for _, m in flat]), owner)
        assert tuple(whole) == pytest.approx(tuple(total))
        inside = [v for v, m in flat if m]
        if not inside:
            assert whole.means() == {"log_ratio_abs": 0.0, "ratio_mean": 1.0, "k3": 0.0, "chi2_token": 0.0, "ess": 1.0}
            return
        weights = [math.exp(sum(v for v, m in rollout if m)) for rollout in rollouts if any(m for _, m in rollout)]
        assert whole.means() == pytest.approx(
            {
                "log_ratio_abs": sum(map(abs, inside)) / len(inside),
                "ratio_mean": sum(map(math.exp, inside)) / len(inside),
                "k3": sum(math.exp(v) - v - 1 for v in inside) / len(inside),
                "chi2_token": sum(math.exp(2 * v) for v in inside) / len(inside) - 1,
                "ess": sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights)),
            },
            abs=1e-9,
        )

    def test_masked_tokens_do_not_reach_the_sequence_weights(self) -> None:
        """Trap 4."""
        log, owner = torch.tensor([0.1, 9.0, 0.1]), torch.tensor([0, 0, 1])
        assert divergence(log, torch.tensor([True, False, True]), owner).means()["ess"] == pytest.approx(1.0)

    def test_is_of_raw_weights(self) -> None:
        """Of weights clamped to [1/C, C] the effective sample size could not fall below 0.64 at C = 2."""
        log = torch.tensor([5.0] + [0.0] * 9)
        assert divergence(log, torch.ones(10, dtype=torch.bool), torch.arange(10)).means()["ess"] < 0.12
