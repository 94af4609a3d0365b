"""The comparison of runs that share: at tokens between two evaluations, in proportion."""

from __future__ import annotations

import doctest

import pytest
import sharing


def test_accuracies_are_compared_at_equal_tokens() -> None:
    done = doctest.testmod(sharing)
    assert done.attempted and not done.failed
    curve = [(0, 0.2), (100, 0.4), (300, 0.8)]
    for tokens, due in ((0, 0.2), (25, 0.25), (100, 0.4), (200, 0.6), (300, 0.8), (900, 0.8)):
        assert sharing.accuracy_at(curve, tokens) == pytest.approx(due), tokens
