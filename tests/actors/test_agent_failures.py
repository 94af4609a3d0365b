"""Agents that all fail are begun rarely, in bounded time, until one is well."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actors.coordinator.agent_failures import FREE, LONGEST_S, AgentFailures, delay_s


@given(st.integers(0, 10**6))
def test_the_delay_grows_and_is_bounded(failures: int) -> None:
    assert 0 <= delay_s(failures) <= delay_s(failures + 1) <= LONGEST_S
    assert (delay_s(failures) > 0) == (failures >= FREE)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e3)), max_size=40))
def test_while_all_fail_one_begins_at_a_time_and_none_waits_for_longer_than_the_bound(
    said: list[tuple[bool, float]],
) -> None:
    """Each time a while later an attempt fails, or one begins if it may."""
    failures, now, quiet = AgentFailures(), 0.0, 0.0
    for failed, seconds in said:
        now += seconds
        assert failures.delays(now) == (now < quiet) and quiet - now <= LONGEST_S
        if failed:
            failures.failed("raised", now)
        elif not failures.delays(now):
            failures.begins(now)
        else:
            continue
        quiet = now + delay_s(failures.count)
    assert failures.count == sum(failed for failed, _ in said)
