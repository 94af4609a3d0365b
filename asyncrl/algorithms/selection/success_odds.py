"""A prediction of success from the beginning of a response: an online logistic regression.

Features are 1, the mean log-probability, the logarithm of the length, the repetition, and the
log-odds of the prompt's solve rate. Each response that was judged moves the weights once, by a
Newton step of its own (Laplace's approximation, one rank a time):

    p = σ(w·x),  H += p (1 - p) x xᵀ,  w += H⁻¹ x (right - p),  H = I / PRIOR at first

Invariant: the weights are a function of the last responses that the history has, so a resumed run
predicts as it would have before the crash. Only responses that reached their end are learned from,
so a rule that ends some with certainty never learns that it was wrong about them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncrl.algorithms.selection.beginnings import Beginning, JudgedBeginning

ENOUGH = 16
"""Judged responses from which a prediction is made."""
PRIOR = 4.0
"""Variance of each weight before the first response."""


def features(of: Beginning) -> list[float]:
    """The numbers that a prediction weighs."""
    odds = math.log(of.solve_rate / (1 - of.solve_rate)) if 0 < of.solve_rate < 1 else 0.0
    return [1.0, of.logprob, math.log2(1 + of.tokens) / 8, of.repetition, odds]


class SuccessOdds:
    """The chance that a response is right, by how it begins.

    >>> sure, unsure = Beginning(8, -0.1, 0.0, 0.5), Beginning(8, -2.0, 0.0, 0.5)
    >>> odds = SuccessOdds()
    >>> odds.learn([JudgedBeginning(sure, True), JudgedBeginning(unsure, False)] * 32, 64)
    True
    >>> odds.of(sure) > 0.9 > 0.1 > odds.of(unsure)
    True
    """

    def __init__(self) -> None:
        self._known = -1  # judged responses, of which the last ones were learned
        self._weights: list[float] = []
        self.mean = 0.0
        """The share of the responses learned from that was right."""

    def learn(self, judged: Sequence[JudgedBeginning], count: int) -> bool:
        """Learn from the last judged responses, out of `count` in all. Returns False where they are
        too few."""
        if len(judged) < ENOUGH:
            return False
        if count != self._known:
            self._known, self._weights = count, _weights(judged)
            self.mean = sum(one.right for one in judged) / len(judged)
        return True

    def of(self, beginning: Beginning) -> float:
        """The chance, over 0 and below 1. Call it after `learn`."""
        return _chance(self._weights, features(beginning))


def _weights(judged: Sequence[JudgedBeginning]) -> list[float]:
    size = len(features(judged[0].beginning))
    weights, places = [0.0] * size, range(size)
    inverse = [[PRIOR * (row == column) for column in places] for row in places]
    for one in judged:
        x = features(one.beginning)
        p = _chance(weights, x)
        along = [_dot(row, x) for row in inverse]
        scale = 1 + p * (1 - p) * _dot(along, x)
        for row in places:
            share = p * (1 - p) * along[row] / scale
            inverse[row] = [inverse[row][column] - share * along[column] for column in places]
            weights[row] += along[row] * (one.right - p) / scale
    return weights


def _chance(weights: Sequence[float], x: Sequence[float]) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, _dot(weights, x)))))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))
