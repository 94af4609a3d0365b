"""GRPO advantages against numpy, with every way a group can be odd."""

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staleness.advantages import STD_FLOOR, grpo

groups = st.dictionaries(st.integers(0, 50), st.lists(st.floats(-3, 3), min_size=1, max_size=9), min_size=1, max_size=6)


@given(groups, st.integers(0, 2**32))
def test_uneven_groups_in_any_order_equal_numpy(members: dict[int, list[float]], seed: int) -> None:
    samples = [(group, reward) for group, rewards in members.items() for reward in rewards]
    Random(seed).shuffle(samples)
    got = grpo([reward for _, reward in samples], [group for group, _ in samples], members)
    assert got.dtype == torch.float32 and got.shape == (len(samples),)
    for (group, reward), advantage in zip(samples, got.tolist(), strict=True):
        rewards = np.array(members[group])
        expected = 0.0 if np.all(rewards == rewards[0]) else (reward - rewards.mean()) / max(rewards.std(ddof=1), STD_FLOOR)
        assert advantage == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_siblings_trained_elsewhere_count() -> None:
    assert grpo([1.0], [7], {7: [1.0, 0.0]}).item() == pytest.approx(0.5 / np.std([1.0, 0.0], ddof=1))


def test_equal_rewards_are_no_signal_even_where_their_mean_is_not_exact() -> None:
    assert not grpo([0.1] * 3, [0] * 3, {0: [0.1] * 3}).any()
    assert not grpo([0.7], [0], {0: [0.7]}).any()


def test_almost_equal_rewards_are_divided_by_the_floor() -> None:
    low, high = grpo([0.0, 1e-9], [0, 0], {0: [0.0, 1e-9]}).tolist()
    assert high == pytest.approx(0.5e-9 / STD_FLOOR) and low == pytest.approx(-high)


def test_no_verdict_is_no_zero() -> None:
    with pytest.raises(ValueError, match="group 3 has no member with a verdict"):
        grpo([0.0], [3], {})
    with pytest.raises(ValueError, match="must give NoVerdict"):
        grpo([1.0], [0], {0: [1.0, float("nan")]})
