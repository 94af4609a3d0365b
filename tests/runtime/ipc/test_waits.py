from __future__ import annotations

import math

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.runtime.ipc.waits import Pulse, WaitExpired, Waits


async def test_a_wait_ends_with_its_block(autojump_clock):
    waits = Waits()
    with waits.on("leases", owner="rollout-0", deadline_s=10):
        await trio.sleep(3)
    assert waits.table() == []
    assert waits.idle() == {"leases": pytest.approx(3)}


async def test_a_wait_expires_with_a_sentence(autojump_clock):
    waits = Waits()
    start = trio.current_time()
    with (
        pytest.raises(WaitExpired, match=r"rollout-0 waited 10 s for leases") as caught,
        waits.on("leases", owner="rollout-0", deadline_s=10),
    ):
        await trio.sleep_forever()
    assert trio.current_time() - start == pytest.approx(10)
    assert (caught.value.name, caught.value.owner, caught.value.seconds) == (
        "leases",
        "rollout-0",
        10,
    )
    assert waits.table() == []
    assert waits.idle() == {"leases": pytest.approx(10)}


async def test_a_finished_block_does_not_expire(autojump_clock):
    waits = Waits()
    with waits.on("x", owner="me", deadline_s=1), trio.CancelScope(shield=True):
        await trio.sleep(5)


async def test_cancellation_from_outside_passes_through(autojump_clock):
    waits = Waits()
    with trio.move_on_after(2) as scope, waits.on("x", owner="me", deadline_s=10):
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert waits.table() == []
    assert waits.idle() == {"x": pytest.approx(2)}


async def test_an_exception_passes_through(autojump_clock):
    waits = Waits()
    with pytest.raises(KeyError), waits.on("x", owner="me", deadline_s=10):
        raise KeyError("mine")
    assert waits.table() == []


async def test_the_inner_deadline_is_the_inner_waits(autojump_clock):
    waits = Waits()
    with (
        pytest.raises(WaitExpired, match="inner"),
        waits.on("outer", owner="me", deadline_s=5),
        waits.on("inner", owner="me", deadline_s=2),
    ):
        await trio.sleep_forever()
    with (
        pytest.raises(WaitExpired, match="outer"),
        waits.on("outer", owner="me", deadline_s=2),
        waits.on("inner", owner="me", deadline_s=5),
    ):
        await trio.sleep_forever()
    assert waits.table() == []


@pytest.mark.parametrize("deadline", [0, -1, math.inf, math.nan])
async def test_a_wait_is_bounded(deadline):
    with (
        pytest.raises(ValueError, match="deadline"),
        Waits().on("x", owner="me", deadline_s=deadline),
    ):
        pass


async def test_the_table_is_oldest_first(autojump_clock):
    waits = Waits()

    async def hold(name: str, after: float) -> None:
        await trio.sleep(after)
        with waits.on(name, owner="me", deadline_s=100):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, "young", 3)
        nursery.start_soon(hold, "old", 1)
        await trio.sleep(5)
        table = waits.table()
        assert [(w.name, w.owner, w.bound) for w in table] == [
            ("old", "me", 100),
            ("young", "me", 100),
        ]
        assert [w.seconds for w in table] == [pytest.approx(4), pytest.approx(2)]
        nursery.cancel_scope.cancel()
    assert waits.table() == []


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(1, 20)), max_size=8),
    st.integers(0, 45),
)
def test_idle_counts_an_instant_once_for_each_name(intervals, look):
    """Against counting, for each unit of time, whether any wait of the name covers it."""
    seen = {}

    async def hold(waits: Waits, name: str, start: int, length: int) -> None:
        await trio.sleep(start)
        with waits.on(name, owner="me", deadline_s=1000):
            await trio.sleep(length)

    async def main() -> None:
        waits = Waits()
        async with trio.open_nursery() as nursery:
            for interval in intervals:
                nursery.start_soon(hold, waits, *interval)
            await trio.sleep(look + 0.5)
            seen["during"] = waits.idle()
        seen["after"] = waits.idle()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    units = [look, 100]
    for when, end in zip(["during", "after"], units, strict=True):
        for name in "ab":
            covered = sum(
                any(s <= t < s + n for i, s, n in intervals if i == name) for t in range(end)
            )
            half = (
                0.5
                if when == "during" and any(s <= look < s + n for i, s, n in intervals if i == name)
                else 0
            )
            assert seen[when].get(name, 0) == pytest.approx(covered + half)


async def test_a_wait_outside_of_the_table_counts_while_it_lasts(autojump_clock):
    waits = Waits()
    with waits.idle_for("weights"):
        await trio.sleep(1)
        with waits.on("weights", owner="me", deadline_s=10):
            await trio.sleep(1)
        assert not waits.table() and waits.idle() == {"weights": pytest.approx(2)}
        await trio.sleep(2)
        assert waits.idle() == {"weights": pytest.approx(4)}
    await trio.sleep(1)
    with waits.idle_for("weights"):
        await trio.sleep(1)
    assert waits.idle() == {"weights": pytest.approx(5)}


async def test_a_pulse_set_before_is_not_lost(autojump_clock):
    pulse = Pulse()
    pulse.set()
    pulse.set()
    assert pulse.statistics().set
    await pulse.wait()
    with trio.move_on_after(1) as scope:
        await pulse.wait()
    assert scope.cancelled_caught, "two sets before a wait are one"


async def test_a_pulse_wakes_its_waiter(autojump_clock):
    pulse = Pulse()
    woken = []

    async def pump() -> None:
        for _ in range(3):
            await pulse.wait()
            woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump)
        for _ in range(3):
            await trio.sleep(1)
            assert pulse.statistics().waiting
            pulse.set()
    assert len(woken) == 3 and not pulse.statistics().set


async def test_a_cancelled_wait_takes_no_pulse(autojump_clock):
    pulse = Pulse()

    async def cancelled_as_it_is_set() -> None:
        with trio.CancelScope() as scope:
            nursery.start_soon(set_and_cancel, scope)
            await pulse.wait()

    async def set_and_cancel(scope: trio.CancelScope) -> None:
        pulse.set()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancelled_as_it_is_set)
    taken = not pulse.statistics().set
    if not taken:
        with trio.fail_after(1):
            await pulse.wait()

    with trio.CancelScope() as scope:
        pulse.set()
        scope.cancel()
        await pulse.wait()
    assert scope.cancelled_caught and pulse.statistics().set


async def test_a_pulse_has_one_waiter(autojump_clock):
    pulse = Pulse()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pulse.wait)
        await trio.sleep(1)
        with pytest.raises(trio.BusyResourceError):
            await pulse.wait()
        pulse.set()


async def test_a_wait_until_an_event_names_it_and_lasts_until_it_ends(autojump_clock):
    waits = Waits()
    with trio.move_on_after(1e6) as scope, waits.until("the link ends", "order", owner="rank 1"):
        (row,) = waits.table()
        assert (row.name, row.owner, row.bound) == ("order", "rank 1", "the link ends")
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert not waits.table()
    assert waits.idle() == {"order": 1e6}


async def test_a_wait_until_nothing_is_refused():
    with pytest.raises(ValueError, match="event"), Waits().until("", "order", owner="rank 1"):
        pass
