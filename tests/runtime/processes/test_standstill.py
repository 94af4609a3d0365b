"""A process that stood still puts its deadlines off, and blames nobody for that time."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
import trio.lowlevel
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.runtime.processes.standstill import LATE_S, TICK_S, Patience, RunClock, stood_s

MOMENT = st.floats(0, 1e6)
SECONDS = st.floats(0, 1e6)


@given(MOMENT, SECONDS)
def test_who_wakes_late_stood_still_and_who_is_merely_busy_did_not(due: float, late: float) -> None:
    now = due + late
    assert stood_s(due, now) == (now - due if now - due >= LATE_S else 0.0)


async def test_the_run_clock_stops_in_a_standstill_and_before_it_is_known(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock, began = RunClock(), trio.current_time()
    shown: list[float] = []

    async def stop() -> None:
        await trio.sleep(5.0)
        autojump_clock.jump(55.0)
        shown.append(clock.now() - began)  # it runs before the task that sleeps has woken

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop)
        assert await clock.sleep_until(began + 10.0) == 50.0
    assert shown == [10.0] and clock.now() - began == 10.0
    assert await clock.sleep_until(trio.current_time() + 1.0) == 0.0
    assert clock.now() - began == 11.0


async def test_the_run_clock_can_be_stopped_for_a_sleep(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock, began = RunClock(), trio.current_time()
    shown: list[float] = []

    async def read() -> None:
        await trio.sleep(0.5)
        shown.append(clock.now() - began)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await clock.sleep_until(began + 1.0, stopped=True)
    assert shown == [0.0] and clock.now() == began
    with trio.move_on_after(3.0):
        await clock.sleep_until(trio.current_time() + 10.0, stopped=True)
    await trio.sleep(2.0)
    assert clock.now() == began + 2.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 100)), max_size=10))
def test_the_run_clock_never_goes_back(moves: list[tuple[float, float]]) -> None:
    async def run() -> None:
        clock, shown = RunClock(), [0.0]

        async def read() -> None:
            while True:
                shown.append(clock.now())
                await trio.sleep(0.3)

        async def tick() -> None:
            while True:
                stopped = len(shown) % 3 == 0
                await clock.sleep_until(trio.current_time() + TICK_S, stopped=stopped)
                shown.append(clock.now())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(tick)
            for ran, stood in moves:
                await trio.sleep(ran)
                machine.jump(stood)
                shown.append(clock.now())
            await trio.sleep(3.0)
            nursery.cancel_scope.cancel()
        assert all(later - sooner >= -1e-9 for sooner, later in pairwise(shown))

    machine = trio.testing.MockClock(autojump_threshold=0.0)
    trio.run(run, clock=machine)


@pytest.mark.parametrize("stood", [0.0, 100.0])
async def test_a_wait_ends_at_the_run_clocks_deadline_and_not_by_a_standstill(
    stood: float, autojump_clock: trio.testing.MockClock
) -> None:
    clock, began, begun = RunClock(), trio.current_time(), 0

    async def tick() -> None:
        while True:
            await clock.sleep_until(trio.current_time() + TICK_S)

    async def stop() -> None:
        await trio.sleep(4.5)
        autojump_clock.jump(stood)

    async def wait() -> None:
        nonlocal begun
        begun += 1
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        nursery.start_soon(stop)
        assert not await clock.repeat(wait, clock.now() + 20.25)
        assert await clock.repeat(trio.lowlevel.checkpoint, clock.now() + 1.0)
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(20.25 + stood, abs=TICK_S)
    assert begun == (2 if stood else 1)


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
