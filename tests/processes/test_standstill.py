"""A process that stood still puts its deadlines off, and blames nobody for that time."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.processes.standstill import LATE_S, TICK_S, Patience, shifted, stood_s

MOMENT = st.floats(0, 1e6)
SECONDS = st.floats(0, 1e6)


@given(MOMENT, SECONDS)
def test_who_wakes_late_stood_still_and_who_is_merely_busy_did_not(due: float, late: float) -> None:
    now = due + late
    assert stood_s(due, now) == (now - due if now - due >= LATE_S else 0.0)


@given(MOMENT, SECONDS, SECONDS)
def test_what_began_is_put_off_by_the_standstill_that_it_lived_through(
    since: float, age: float, stood: float
) -> None:
    now = since + age
    later = shifted(since, stood, now)
    assert since <= later <= now and later - since <= stood + 1e-6
    assert age < stood or later == pytest.approx(since + stood)


async def test_patience_ends_at_its_deadline_however_often_that_is_changed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    patience, began = Patience(), trio.current_time()

    async def change() -> None:
        for _ in range(20):
            patience.deadline = trio.current_time() + 10.25
            await trio.sleep(5.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await trio.lowlevel.checkpoint()
        with trio.fail_after(1000):
            await patience.over()
    assert trio.current_time() - began == pytest.approx(95 + 10.25)


@pytest.mark.parametrize("stood", [5.0, 100.0, 5000.0])
async def test_patience_does_not_end_in_a_standstill_and_ends_after_it(
    stood: float, autojump_clock: trio.testing.MockClock
) -> None:
    patience, began = Patience(), trio.current_time()
    patience.deadline = began + 60.0

    async def pause() -> None:
        await trio.sleep(30.5)
        autojump_clock.jump(stood)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pause)
        await patience.over()
    assert trio.current_time() - began == pytest.approx(60.0 + stood, abs=TICK_S)
