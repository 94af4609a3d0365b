"""Overlong masking and soft overlong punishment, against the paper's own formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algorithms.overlong import overlong_band, overlong_penalty
from asyncrl.messages import Span
from asyncrl.staleness.loss_mask import loss_mask


def paper(length: int, longest: int, cache: int) -> float:
    """Equation 13 of DAPO (arXiv 2503.14476), case by case."""
    if length <= longest - cache:
        return 0.0
    if longest - cache < length <= longest:
        return ((longest - cache) - length) / cache
    return -1.0


@given(st.integers(0, 40_000), st.integers(1, 30_000), st.data())
def test_the_penalty_is_the_papers(length: int, longest: int, data: st.DataObject) -> None:
    cache = data.draw(st.integers(1, longest))
    assert overlong_penalty(length, longest, cache) == paper(length, longest, cache)


def test_the_papers_numbers() -> None:
    """20,480 tokens, of which the last 4,096 are punished."""
    band = overlong_band(0, 20_480)
    assert band == 4_096
    assert [overlong_penalty(n, 20_480, band) for n in (16_384, 18_432, 20_480)] == [0, -0.5, -1]
    assert overlong_band(0, 3) == 1 and overlong_band(7, 20_480) == 7


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), max_size=5), st.integers(0, 9))
def test_a_mask_says_of_each_token_why_it_is_left_out(
    pieces: list[tuple[int, int]], max_lag: int
) -> None:
    spans, end = list[Span](), 0
    for version, count in pieces:
        spans.append(Span(version, end, end + count))
        end += count
    for truncated in (False, True):
        expected = [
            0 if 9 - version > max_lag else 2 if truncated else 1
            for version, count in pieces
            for _ in range(count)
        ]
        assert list(loss_mask(spans, 9, max_lag, truncated=truncated)) == expected


@pytest.mark.parametrize("band", [1, 5])
def test_the_penalty_never_grows_with_fewer_tokens(band: int) -> None:
    all_of_it = [overlong_penalty(n, 10, band) for n in range(12)]
    assert all_of_it == sorted(all_of_it, reverse=True)
    assert (all_of_it[0], all_of_it[10]) == (0.0, -1.0)
