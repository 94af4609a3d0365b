"""Ratios, IcePop and the clipped objective, each against the formula in plain Python."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from staleness import correction, objectives
from staleness.ratios import LIMIT, log_ratio, ratio

logs = st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=12)


def every(values: list[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor(values), torch.ones(len(values), dtype=torch.bool)


class TestRatios:
    def test_what_is_not_finite_is_replaced_before_exp(self) -> None:
        current = torch.tensor([-1.0, -1.0, -math.inf, math.nan, -math.inf, -2.0], requires_grad=True)
        behaviour = torch.tensor([-math.inf, math.nan, -1.0, -1.0, -math.inf, -1.0])
        log, finite = log_ratio(current, behaviour)
        assert finite.tolist() == [False] * 5 + [True]
        assert log.tolist() == [0, 0, 0, 0, 0, -1]
        (ratio(log) * torch.tensor([0.0] * 5 + [1.0])).sum().backward()
        assert current.grad is not None
        assert current.grad.tolist() == pytest.approx([0, 0, 0, 0, 0, math.exp(-1)])

    def test_exponents_are_clamped(self) -> None:
        assert ratio(torch.tensor([1e4, -1e4])).tolist() == pytest.approx([math.exp(LIMIT), math.exp(-LIMIT)])

    def test_is_float32_whatever_comes(self) -> None:
        log, _ = log_ratio(torch.tensor([-1.0], dtype=torch.bfloat16), torch.tensor([-1.003]))
        assert log.dtype == torch.float32 and log.item() == pytest.approx(0.003, rel=1e-3)


class TestIcePop:
    def test_asymmetric_bounds_are_lo_to_hi_and_not_their_inverses(self) -> None:
        """Trap 1: [1/hi, 1/lo] would be [0.2, 2] here."""
        log, mask = every([math.log(k) for k in (0.3, 0.49, 0.51, 1.0, 3.0, 4.9, 5.1)])
        assert correction.icepop(log, mask, lo=0.5, hi=5.0).kept.tolist() == [False, False, True, True, True, True, False]

    def test_bounds_belong_to_the_band(self) -> None:
        log, mask = every([0.0, -1e-6, 1e-6])
        assert correction.icepop(log, mask, lo=1.0, hi=1.0).kept.tolist() == [True, False, False]

    @given(logs, st.data())
    def test_keeps_a_subset_of_the_mask_without_gradient(self, values: list[float], data: st.DataObject) -> None:
        mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
        log = torch.tensor(values, requires_grad=True)
        for result in (correction.icepop(log, mask, lo=0.4, hi=3.0), correction.none(log, mask)):
            assert not (result.kept & ~mask).any()
            assert not result.weight.requires_grad
            assert torch.equal(result.weight != 0, result.kept)
        kept = correction.icepop(log, mask, lo=0.4, hi=3.0).kept.tolist()
        assert kept == [m and 0.4 <= math.exp(v) <= 3.0 for m, v in zip(mask.tolist(), values, strict=True)]

    def test_composes(self) -> None:
        log, mask = every([math.log(k) for k in (0.3, 0.6, 1.5, 4.0)])
        first = correction.icepop(log, mask, lo=0.5, hi=5.0)
        assert correction.icepop(log, first.kept, lo=0.2, hi=2.0).kept.tolist() == [False, True, True, False]


class TestClipped:
    @given(logs, st.floats(-2, 2))
    def test_is_the_formula(self, values: list[float], advantage: float) -> None:
        loss, _ = objectives.clipped(torch.tensor(values), torch.full((len(values),), advantage), lo=0.2, hi=0.28)
        for value, got in zip(values, loss.tolist(), strict=True):
            r = math.exp(value)
            assert got == pytest.approx(-min(r * advantage, min(max(r, 0.8), 1.28) * advantage), rel=1e-4, abs=1e-5)

    def test_the_gradient_stops_where_it_is_said_to_be_clipped(self) -> None:
        """Asymmetric: 1.25 is inside of 1 + hi, 0.75 is outside of 1 - lo; and the other sides are never clipped."""
        log = torch.tensor([math.log(k) for k in (1.25, 1.3, 0.5, 0.75, 0.85, 1.5)], requires_grad=True)
        loss, clipped = objectives.clipped(log, torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0]), lo=0.2, hi=0.28)
        loss.sum().backward()
        assert clipped.tolist() == [False, True, False, True, False, False]
        assert log.grad is not None
        assert (log.grad == 0).tolist() == clipped.tolist()

    def test_rejected_and_huge_is_not_nan(self) -> None:
        """Trap 2: 0 * inf."""
        log = torch.tensor([500.0, -500.0], requires_grad=True)
        loss, _ = objectives.clipped(log, torch.zeros(2), lo=0.2, hi=0.28)
        loss.sum().backward()
        assert log.grad is not None and log.grad.tolist() == [0.0, 0.0]
