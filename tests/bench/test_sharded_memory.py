"""Predicted memory of a rank against what torch's own tracker counts of sharded passes."""

from __future__ import annotations

import pytest
import sharded_memory
from sharded_memory import Case, Shape, compared

WIDE = Shape(512, 1536, 3, 8, 4, vocabulary=20_000, head=64)
DEEP = Shape(1024, 4096, 3, 8, 4, vocabulary=2_000, head=128, tied=True)


@pytest.mark.parametrize(
    ("shape", "ranks", "recompute"), [(WIDE, 2, False), (DEEP, 8, True)], ids=["wide", "deep"]
)
def test_a_rank_has_what_is_predicted(
    shape: Shape, ranks: int, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sharded_memory.SHAPES, "of a test", shape)
    found = compared(Case("of a test", ranks, 64, 960, recompute))
    assert found.first < found.later
    assert 0.9 < found.predicted / found.later < 1.15
