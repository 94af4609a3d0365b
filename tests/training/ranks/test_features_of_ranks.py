"""Whatever one rank can, several can, and learn the same: every two values of features and layouts
together, with a checkpoint that another number of ranks goes on from."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from feature_world import (
    AXES_TOGETHER,
    GAP,
    RANKS,
    SAVED,
    SEEING,
    Arrays,
    Case,
    Found,
    Meshes,
    first_steps,
    gap_of,
    last_steps,
    pairwise,
)
from rank_world import SMALL_LOGITS, SMALL_PACKS, ranks

from asyncrl.training import chunked_logits, packing
from asyncrl.training.ranks.rank import ALONE

CASES = pairwise(seed=1)
CONTEXTS = pairwise(1, AXES_TOGETHER)
SHOWN = [Case(*values, "yes", "0.7", "vision") for values in SEEING]
FIRST, FIRST_CONTEXTS = 6, 2
"""Cases for CI, which have most of the pairs; a case takes three seconds of a core."""


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(
            [*CASES[:FIRST], *CONTEXTS[:FIRST_CONTEXTS], SHOWN[0]], marks=pytest.mark.explore
        ),
        pytest.param(
            [*CASES[FIRST:], *CONTEXTS[FIRST_CONTEXTS:], *SHOWN[1:]], marks=pytest.mark.soak
        ),
    ],
    ids=["first", "others"],
)
def test_all_features_are_those_of_one_rank(
    cases: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PACKED_TOKENS", SMALL_PACKS)
    monkeypatch.setattr(chunked_logits, "LOGIT_BYTES", SMALL_LOGITS)
    with ranks(tmp_path / "store", RANKS, Meshes) as each:
        every = each(partial(Meshes.findings, cases=cases, folder=tmp_path / "several"))
    for number, case in enumerate(cases):
        run = tmp_path / "one" / str(number) / "run"
        expected = [
            step for work in (first_steps, last_steps) for step in work(case, lambda _: ALONE, run)
        ]
        assert len(every[0][number]) == len(expected)
        for step, (found, one) in enumerate(zip(every[0][number], expected, strict=True)):
            compare(found, one, case, f"{case}, step {step}")
        saved, restored = (every[0][number][step].state for step in (SAVED - 1, SAVED))
        assert saved.keys() == restored.keys() and saved, case
        for name, array in saved.items():
            assert np.array_equal(array, restored[name], equal_nan=True), (name, case)


def compare(found: Found, one: Found, case: Case, of: str) -> None:
    exact = case.model != "bfloat16"
    assert found.metrics.keys() == one.metrics.keys(), of
    assert found.weights.keys() == one.weights.keys(), of
    if exact:
        close(found.gradients, one.gradients, 2e-5, of)
        close(found.weights, one.weights, 2e-5, of)
        assert found.counts == one.counts, of
        # a weight halfway between two numbers of the publication is rounded to either, by the order
        # of a sum: the gap is that of the ranks' own weights, which are near those of one
        gap = {GAP: gap_of(case, found.weights)} if GAP in one.metrics else {}
        for name, value in (one.metrics | gap).items():
            assert found.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), (name, of)
    elif case.correction == "icepop":  # others choose tokens, by the smallest of differences
        close(found.gradients, one.gradients, 0.1, of)
        close(found.weights, one.weights, 0.1, of)


def close(mine: Arrays, theirs: Arrays, to: float, of: str) -> None:
    assert mine.keys() == theirs.keys(), of
    scale = max(float(np.abs(array).max()) for array in theirs.values())
    for name, array in theirs.items():
        if name.endswith("attn.c_attn.bias"):
            continue  # the gradient of a key's is rounding alone, and AdamW makes it a step
        apart = float(np.abs(mine[name] - array).max())
        assert apart <= to * scale, f"{apart / scale:.2g} at {name}: {of}"
