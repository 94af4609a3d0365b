"""GDPO's weights of rewards, against a second formula."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.algorithms.advantages import Gdpo

ROWS = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.25], [0.0, 0.0]]
REWARDS = [1.0, 1.0, 1.25, 0.0]


class Weighted(Gdpo):
    weights = (1.0, 0.25)


class Wrong(Gdpo):
    weights = (1.0, 0.25, 0.5)


def standardized(column: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    result: np.ndarray = (column - column.mean()) / column.std(ddof=1)  # type: ignore[type-arg]
    return result


def test_each_part_counts_by_its_weight() -> None:
    table = np.array(ROWS)
    by_hand = standardized(standardized(table[:, 0]) + 0.25 * standardized(table[:, 1]))
    found = Weighted().of_members({4: REWARDS}, {4: ROWS}, {})
    assert found[4] == pytest.approx(by_hand.tolist())
    plain = Gdpo().of_members({4: REWARDS}, {4: ROWS}, {})[4]
    assert plain != pytest.approx(by_hand.tolist())
    alone = {4: [1.0, 0.0]}
    assert Weighted().of_members(alone, {}, {}) == Gdpo().of_members(alone, {}, {})


def test_as_many_weights_as_parts() -> None:
    with pytest.raises(ValueError, match="has 3 weights, and a reward has 2 parts"):
        Wrong().of_members({4: REWARDS}, {4: ROWS}, {})
