"""Machines take turns at the model's files: those that take nothing keep no other one waiting."""

from __future__ import annotations

from functools import partial

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.launch.cluster.equipping_turns import PLACES, SLOW, TURN_S, EquippingTurns

MOST_S = 30.0


class Crowd:
    """Machines, each of which takes the files in so many seconds of its own."""

    def __init__(self) -> None:
        self.turns = EquippingTurns()
        self.holding = self.most = 0
        self.ends: dict[int, tuple[bool, float]] = {}

    async def join(self, number: int, seconds: float, *, after_s: float = 0.0) -> None:
        await trio.sleep(after_s)
        joined = trio.current_time()
        due = 0.0

        async def queue() -> None:
            nonlocal due
            self.holding += 1
            self.most = max(self.most, self.holding)
            due = trio.current_time() + seconds
            await trio.lowlevel.checkpoint()

        taken = await self.turns.turn(queue, lambda: trio.sleep_until(due), MOST_S)
        self.holding -= 1
        self.ends[number] = taken, trio.current_time() - joined


async def test_an_honest_machine_joins_at_once_whatever_a_holder_of_the_token_does(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two hundred links of it take nothing, and more come all the time."""
    crowd = Crowd()
    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(crowd.join, number, 1e9)
        for number in range(200, 230):
            nursery.start_soon(partial(crowd.join, number, 1e9, after_s=number - 200.0))
        nursery.start_soon(partial(crowd.join, -1, 0.2, after_s=5.5))
    taken, seconds = crowd.ends.pop(-1)
    assert taken and seconds <= TURN_S + 0.2
    assert not any(taken for taken, _ in crowd.ends.values())
    assert crowd.most <= 2 * PLACES + SLOW  # those of one moment leave as others come


async def test_a_slow_machine_takes_its_time_beside_the_places(
    autojump_clock: trio.testing.MockClock,
) -> None:
    crowd = Crowd()
    async with trio.open_nursery() as nursery:
        for number in range(SLOW):
            nursery.start_soon(crowd.join, number, 10.0 if number else MOST_S + 1.0)
        for number in range(SLOW, 60):
            nursery.start_soon(partial(crowd.join, number, 0.1, after_s=0.5))
    assert [number for number, (taken, _) in crowd.ends.items() if not taken] == [0]
    assert max(crowd.ends[number][1] for number in range(SLOW, 60)) < 2 * TURN_S


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.0, 60.0), st.floats(0.0, 20.0)), max_size=60))
def test_everybody_comes_to_an_end_and_few_hold_files(machines: list[tuple[float, float]]) -> None:
    crowd = Crowd()

    async def all_of_them() -> None:
        async with trio.open_nursery() as nursery:
            for number, (seconds, after_s) in enumerate(machines):
                nursery.start_soon(partial(crowd.join, number, seconds, after_s=after_s))

    trio.run(all_of_them, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(crowd.ends) == len(machines) and crowd.holding == 0
    assert crowd.most <= 2 * PLACES + SLOW
    for number, (seconds, _) in enumerate(machines):
        taken, _ = crowd.ends[number]
        assert not (taken and seconds > MOST_S) and (taken or seconds > TURN_S)
    assert crowd.turns._free == PLACES
