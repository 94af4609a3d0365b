"""A run whose answers a slow judge scores, that fails at times: its engines stay busy."""

from __future__ import annotations

import pytest
import trio
from judge import FAILS, LATENCY_S, PER_MINUTE, measured


@pytest.mark.parametrize("latency_s", [LATENCY_S, 2 * LATENCY_S])
async def test_engines_stay_busy_and_no_answer_is_scored_twice_or_zero(
    latency_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """Its limit is a little above what the engines generate, whose queue is what hides it."""
    found = await measured(latency_s, FAILS, PER_MINUTE, steps=12)
    assert found.busy > 0.9
    assert (found.without, found.zero, found.twice) == (0, 0, 0)
    assert found.scored >= 12 * 8 and found.requests > found.scored
    assert found.most_in_a_minute <= PER_MINUTE
