"""Lag is per token, `step - version`, however the response is cut into spans."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.messages import Span
from asyncrl.staleness.lag import fresh_mask, rollout_lag, tokens_by_lag

STEP = 9


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    tiles, start = [], 0
    for version, tokens in draw(
        st.lists(st.tuples(st.integers(0, STEP), st.integers(0, 5)), max_size=6)
    ):
        tiles.append(Span(version, start, start + tokens))
        start += tokens
    return tiles


def token_lags(tiles: list[Span]) -> list[int]:
    """The definition, one token at a time."""
    return [STEP - span.version for span in tiles for _ in range(span.start, span.end)]


@given(spans(), st.integers(0, STEP + 1))
def test_mask_and_counts_are_those_of_the_single_tokens(tiles: list[Span], max_lag: int) -> None:
    lags = token_lags(tiles)
    assert list(fresh_mask(tiles, STEP, max_lag)) == [int(lag <= max_lag) for lag in lags]
    assert rollout_lag(tiles, STEP) == max(lags, default=0)
    assert tokens_by_lag(tiles, STEP) == Counter(lags)


def test_a_token_of_the_future_is_refused() -> None:
    with pytest.raises(
        ValueError, match="version 4 is newer than the policy that step 3 starts from"
    ):
        fresh_mask([Span(4, 0, 1)], 3, 4)
