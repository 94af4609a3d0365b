"""Ratios that no log-probability can make anything but a bounded number."""

import math

import pytest
import torch

from asyncrl.algorithms.ratios import LIMIT, log_ratio, ratio


class TestRatios:
    def test_what_is_not_finite_is_replaced_before_exp(self) -> None:
        current = torch.tensor(
            [-1.0, -1.0, -math.inf, math.nan, -math.inf, -2.0], requires_grad=True
        )
        behaviour = torch.tensor([-math.inf, math.nan, -1.0, -1.0, -math.inf, -1.0])
        log, finite = log_ratio(current, behaviour)
        assert finite.tolist() == [False] * 5 + [True]
        assert log.tolist() == [0, 0, 0, 0, 0, -1]
        (ratio(log) * torch.tensor([0.0] * 5 + [1.0])).sum().backward()
        assert current.grad is not None
        assert current.grad.tolist() == pytest.approx([0, 0, 0, 0, 0, math.exp(-1)])

    def test_exponents_are_clamped(self) -> None:
        assert ratio(torch.tensor([1e4, -1e4])).tolist() == pytest.approx(
            [math.exp(LIMIT), math.exp(-LIMIT)]
        )

    def test_is_float32_whatever_comes(self) -> None:
        log, _ = log_ratio(torch.tensor([-1.0], dtype=torch.bfloat16), torch.tensor([-1.003]))
        assert log.dtype == torch.float32 and log.item() == pytest.approx(0.003, rel=1e-3)
