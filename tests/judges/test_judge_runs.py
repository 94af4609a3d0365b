"""A run whose answers a slow judge scores, that fails at times: its engines stay busy."""

from __future__ import annotations

import pytest
import trio
from judge import BY_GROUP, FAILS, GROUP, LATENCY_S, PER_MINUTE, measured


@pytest.mark.parametrize(
    ("latency_s", "fails", "per_minute", "members"),
    [
        (LATENCY_S, FAILS, PER_MINUTE, "alone"),
        (2 * LATENCY_S, FAILS, PER_MINUTE, "alone"),
        (LATENCY_S, 6 * FAILS, 2 * BY_GROUP, "scored"),
    ],
)
async def test_engines_stay_busy_and_no_answer_is_scored_twice_or_zero(
    latency_s: float,
    fails: float,
    per_minute: int,
    members: str,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its limit is a little above what the engines generate, whose queue is what hides it."""
    found = await measured(latency_s, fails, per_minute, steps=12, members=members)
    assert found.busy > 0.9
    assert (found.without, found.zero, found.twice) == (0, 0, 0)
    each = 1 if members == "alone" else GROUP
    assert found.scored >= 12 * 8 and each * found.requests > found.scored
    assert found.most_in_a_minute <= per_minute
