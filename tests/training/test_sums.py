"""Sums that other ranks are told."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.staleness.bins import BINS
from asyncrl.staleness.diagnostics import ByLag, Divergence
from asyncrl.training.sums import Sums

COUNTS, NUMBERS = st.integers(0, 2**40), st.floats(allow_nan=False)
NAMES = st.dictionaries(st.text(), NUMBERS, max_size=3)


@given(*[COUNTS] * 4, *[NUMBERS] * 3, NAMES, NAMES)
def test_sums_come_as_they_were_said(
    trained: int,
    arrived: int,
    clipped: int,
    unknown: int,
    loss: float,
    divisor: float,
    entry: float,
    corrections: dict[str, float],
    policies: dict[str, float],
) -> None:
    by_lag = torch.zeros(len(BINS), len(Divergence._fields), dtype=torch.float64)
    by_lag[-1, 2] = entry
    tensors = {name: torch.tensor(v, dtype=torch.float64) for name, v in corrections.items()}
    said = Sums(trained, arrived, clipped, unknown, loss, divisor, ByLag(by_lag), tensors, policies)
    heard = Sums.decoded(said.encoded())
    assert torch.equal(heard.by_lag.sums, by_lag)
    assert heard.corrections == tensors
    assert heard._replace(by_lag=said.by_lag, corrections=tensors) == said
