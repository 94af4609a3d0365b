"""Learning rates at the corners of every schedule."""

import pytest

from asyncrl.config.schema import TrainConfig
from asyncrl.training.schedule import learning_rate


def rates(schedule: str, warmup: int = 4, steps: int = 12) -> list[float]:
    train = TrainConfig(lr=1.0, lr_warmup_steps=warmup, lr_schedule=schedule, steps=steps)  # type: ignore[arg-type]
    return [learning_rate(train, step) for step in range(steps)]


def test_warm_up_rises_to_lr_and_never_starts_at_zero() -> None:
    assert rates("constant")[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert rates("constant", warmup=0) == [1.0] * 12


def test_linear_and_cosine_fall_towards_zero_at_the_end() -> None:
    assert rates("linear")[4:] == pytest.approx([1 - k / 8 for k in range(8)])
    assert rates("cosine")[4] == 1.0 and rates("cosine")[8] == pytest.approx(0.5)
    assert 0 < rates("cosine")[-1] < 0.05
    assert learning_rate(
        TrainConfig(lr=1.0, lr_schedule="cosine", steps=5, lr_warmup_steps=1), 50
    ) == pytest.approx(0.0)


def test_a_warm_up_longer_than_the_run_is_no_error() -> None:
    assert rates("linear", warmup=20) == sorted(rates("linear", warmup=20))
