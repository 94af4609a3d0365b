"""Proximal policies, and the two factors of a ratio."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.staleness.proximal import alpha, log_ratios, loglinear, recompute, scored

logs = st.floats(-8, 0, width=32)


@given(st.lists(st.tuples(logs, logs, st.integers(0, 12)), min_size=1, max_size=8))
def test_loglinear_is_the_formula_of_versions(rows: list[tuple[float, float, int]]) -> None:
    """`a = (v_prox - v_mu) / (v_cur - v_mu)` with v_prox = max(v_mu, v_cur - 1); 0 where nothing
    lies between."""
    v_cur = 20
    expected = []
    for behaviour, current, lag in rows:
        v_mu = v_cur - lag
        v_prox = max(v_mu, v_cur - 1)
        a = (v_prox - v_mu) / (v_cur - v_mu) if lag else 0.0
        expected.append(behaviour + a * (current - behaviour))
    behaviour, current = (torch.tensor([row[i] for row in rows]) for i in (0, 1))
    got = loglinear(behaviour, current.requires_grad_(), torch.tensor([row[2] for row in rows]))
    assert got.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert got.dtype == torch.float32 and not got.requires_grad


def test_alpha_is_of_the_version_before_the_current_one() -> None:
    assert alpha(torch.tensor([0, 1, 2, 4])).tolist() == [0.0, 0.0, 0.5, 0.75]


def test_a_fresh_token_has_its_own_version_as_the_proximal_one() -> None:
    current = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    got = scored(torch.tensor([-9.0, -2.5, math.nan]), current, torch.tensor([0, 1, 2]))
    assert got.tolist()[:2] == [-1.0, -2.5] and math.isnan(got[2])
    assert not got.requires_grad


def test_recompute_has_no_gradient() -> None:
    current = torch.tensor([-1.0], requires_grad=True)
    assert recompute(current).tolist() == [-1.0] and not recompute(current).requires_grad


class TestLogRatios:
    @given(st.lists(st.tuples(logs, logs, logs), min_size=1, max_size=8))
    def test_are_the_factors_of_the_whole(self, rows: list[tuple[float, float, float]]) -> None:
        current, behaviour, proximal = (torch.tensor([row[i] for row in rows]) for i in range(3))
        current.requires_grad_()
        objective, correction, finite = log_ratios(current, behaviour, proximal)
        assert objective.tolist() == pytest.approx([c - p for c, _, p in rows], abs=1e-6)
        assert correction.tolist() == pytest.approx([p - b for _, b, p in rows], abs=1e-6)
        assert finite.all()
        assert not correction.requires_grad
        (gradient,) = torch.autograd.grad(objective.sum(), current)
        assert (gradient == 1).all()

    def test_what_is_anchored_to_learns_nothing(self) -> None:
        proximal = torch.tensor([-1.0], requires_grad=True)
        objective, _, _ = log_ratios(
            torch.tensor([-2.0], requires_grad=True), torch.tensor([-1.5]), proximal
        )
        objective.sum().backward()
        assert proximal.grad is None

    def test_without_a_proximal_policy_both_are_the_whole(self) -> None:
        current = torch.tensor([-1.0, -2.0], requires_grad=True)
        objective, correction, _ = log_ratios(current, torch.tensor([-1.5, -1.0]), None)
        assert objective.tolist() == correction.tolist() == [0.5, -1.0]
        assert objective.requires_grad and not correction.requires_grad

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_what_is_not_finite_anywhere_is_0_in_both(self, which: int, bad: float) -> None:
        values = [
            torch.tensor([-1.0, -2.0]),
            torch.tensor([-1.5, -2.5]),
            torch.tensor([-1.25, -2.25]),
        ]
        values[which][0] = bad
        current = values[0].requires_grad_()
        objective, correction, finite = log_ratios(current, values[1], values[2])
        assert finite.tolist() == [False, True]
        assert objective.tolist() == [0.0, 0.25] and correction.tolist() == [0.0, 0.25]
        (gradient,) = torch.autograd.grad(objective.exp().sum(), current)
        assert gradient.tolist() == pytest.approx([0.0, math.exp(0.25)])

    @pytest.mark.parametrize("proximal", [None, torch.tensor([-1.0078125], dtype=torch.bfloat16)])
    def test_are_float32_whatever_comes(self, proximal: torch.Tensor | None) -> None:
        """Trap 7: the difference of the last versions is less than a bfloat16 can tell."""
        objective, correction, _ = log_ratios(
            torch.tensor([-1.0], dtype=torch.bfloat16), torch.tensor([-1.003]), proximal
        )
        assert objective.dtype == correction.dtype == torch.float32
        assert correction.item() == pytest.approx(
            0.003 if proximal is None else -0.0048125, rel=1e-3
        )
