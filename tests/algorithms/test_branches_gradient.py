"""Gradient of an episode that forks, summed over every group that there can be: `train.branches =
"token"` gives the true one, `"branch"` counts what branches share twice. The credit `to_go`, with a
reward on the call of each leaf, gives the true one, too."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from asyncrl.algorithms.advantages import Rloo
from asyncrl.algorithms.advantages.credit import turn_advantages
from asyncrl.algorithms.advantages.rewards_to_go import RewardsToGo
from asyncrl.experience.episode import Strand, Turn, path_counts

Gradient = NDArray[np.float64]

FIRST = np.exp([0.3, -0.5]) / np.exp([0.3, -0.5]).sum()
"""The policy's choice of the first turn."""
NEXT = np.array([[0.6, 0.4], [0.2, 0.8]])
"""Its choice in each branch, by the first."""
REWARD = np.array([[1.0, 0.25], [0.0, 0.5]])
"""The reward of a leaf. An episode has two leaves, and the mean of their rewards."""
MEMBERS = 3


def score_first(a: int) -> Gradient:
    score = np.zeros(6)
    score[:2] -= FIRST
    score[a] += 1
    return score


def score_next(a: int, b: int) -> Gradient:
    score = np.zeros(6)
    score[2 + 2 * a : 4 + 2 * a] -= NEXT[a]
    score[2 + 2 * a + b] += 1
    return score


def true_gradient() -> Gradient:
    """The derivative of the expected mean of the leaves."""
    return sum(
        (
            FIRST[a] * NEXT[a, b] * REWARD[a, b] * (score_first(a) + score_next(a, b))
            for a in range(2)
            for b in range(2)
        ),
        np.zeros(6),
    )


def counts(branches: str) -> list[int]:
    """The number of times that the trainer counts each turn: the first, and each leaf."""
    if branches == "token":
        return [1, 1, 1]
    turns = [Turn(1, "stop"), Turn(1, "stop"), Turn(1, "stop")]
    strands = [Strand(None, 0, [bytes(4), 0, 1]), Strand(0, 2, [2])]
    (trunk, leaf) = path_counts(turns, strands)
    flat = [count for count, tokens in [*trunk, *leaf] for _ in range(tokens)]
    assert len(flat) == 3
    return flat


def expected(branches: str, *, to_go: bool = False) -> Gradient:
    """The mean over all groups of an episode's gradient."""
    episodes = list(product(range(2), repeat=3))
    times, total = counts(branches), np.zeros(6)
    for group in product(episodes, repeat=MEMBERS):
        chance = np.prod([FIRST[a] * NEXT[a, b] * NEXT[a, c] for a, b, c in group])
        leaves = [[REWARD[a, b] / 2, REWARD[a, c] / 2] for a, b, c in group]
        rewards = [sum(of_leaves) for of_leaves in leaves]
        if to_go:
            turns = [[0.0, *of_leaves] for of_leaves in leaves]
            table = turn_advantages(Rloo(), RewardsToGo(), rewards, turns)
        else:
            table = [[value] * 3 for value in Rloo().of_group(rewards)]
        for (a, b, c), row in zip(group, table, strict=True):
            scores = [score_first(a), score_next(a, b), score_next(a, c)]
            for score, value, often in zip(scores, row, times, strict=True):
                total += chance * often * value * score / MEMBERS
    return total


def cosine(a: Gradient, b: Gradient) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("to_go", [False, True])
def test_each_token_once_is_the_true_gradient(to_go: bool) -> None:
    true = true_gradient()
    assert np.linalg.norm(true) > 0.05, "or this shows nothing"
    assert expected("token", to_go=to_go) == pytest.approx(true, abs=1e-12)


def test_each_branch_whole_counts_what_is_shared_twice() -> None:
    """The docs say so of `train.branches = "branch"`: exactly twice where two branches share it,
    and another direction than the gradient's."""
    true, found = true_gradient(), expected("branch")
    assert found[:2] == pytest.approx(2 * true[:2], abs=1e-12)
    assert found[2:] == pytest.approx(true[2:], abs=1e-12)
    assert round(cosine(found, true), 3) == 0.948
