"""Agents that all fail are begun rarely, in bounded time, until one is well."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.actors.coordinator.agent_failures import FREE, LONGEST_S, AgentFailures, delay_s
from asyncrl.actors.coordinator.engine_pool import EnginePool
from asyncrl.actors.coordinator.episode_placement import EpisodePlacement
from asyncrl.actors.coordinator.peers import Roster
from asyncrl.runtime.processes.standstill import RunClock


@given(st.integers(0, 10**6), st.floats(0.5, 60.0))
def test_no_delay_is_longer_than_was_said(failures: int, longest_s: float) -> None:
    assert delay_s(failures, longest_s) == min(delay_s(failures), longest_s)


@pytest.mark.parametrize(("stall_s", "longest_s"), [(600.0, 60.0), (60.0, 30.0)])
async def test_no_delay_is_taken_for_a_stall(
    stall_s: float,
    longest_s: float,
    autojump_clock: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    placement = EpisodePlacement(Roster(lambda: None), EnginePool(), RunClock(), 8, stall_s)
    peer = SimpleNamespace(name="agents-0")
    for _ in range(40):
        placement.failed(peer, "raised")  # type: ignore[arg-type]
    [wait] = placement.waits
    assert wait.bound == longest_s
    [said] = caplog.messages
    assert said.startswith(f"all of the last {FREE} episodes of agents-0 failed"), "said once"


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
