"""Pipes in memory: what arrives is a prefix of what was sent, in order, whatever happens to the
wire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.messages import Drain, Interrupt
from asyncrl.runtime.ipc.errors import EndOfStream, LinkBroken
from asyncrl.simulation.network import CAPACITY, MemoryPipe, links, pipes


async def read(pipe: MemoryPipe, size: int = 64) -> bytes:
    view = memoryview(bytearray(size))
    return bytes(view[: await pipe.receive_into(view)])


FAULTS = ("none", "delay", "hold", "freeze", "cut", "die")


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.sampled_from(FAULTS)), max_size=12),
    st.integers(1, 50),
)
def test_what_arrives_is_a_prefix_of_what_was_sent(
    frames: list[tuple[bytes, str]], size: int
) -> None:
    sent, got = bytearray(), bytearray()

    async def scenario() -> None:
        ours, theirs = pipes()

        async def reader() -> None:
            try:
                while data := await read(theirs, size):
                    got.extend(data)
            except trio.BrokenResourceError:
                pass

        faults: dict[str, Callable[[], object]] = {
            "hold": lambda: ours.out.hold(True),
            "freeze": lambda: theirs.freeze(True),
            "cut": ours.cut,
            "die": ours.die,
        }
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader)
            whole = True
            for data, fault in frames:
                ours.out.delay_s = 0.5 if fault == "delay" else 0.0
                try:
                    await ours.send([data])
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    break
                sent.extend(data)
                if fault in faults:
                    faults[fault]()
                    whole = whole and fault != "cut"
                await trio.sleep(0.1)
                if fault == "hold":
                    ours.out.hold(False)
                if fault == "freeze":
                    theirs.freeze(False)
            ours.die()
        assert sent.startswith(got)
        if whole:
            assert got == sent

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_delayed_wire_delivers_in_order_and_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = pipes()
    ours.out.delay_s = 2.0
    began = trio.current_time()
    await ours.send([b"first"])
    ours.out.delay_s = 0.0
    await ours.send([b"second"])
    assert await read(theirs) == b"first" and trio.current_time() == began + 2.0
    assert await read(theirs) == b"second" and trio.current_time() == began + 2.0


async def test_a_half_open_connection_goes_on_in_the_other_direction(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = pipes()
    ours.out.hold(True)
    await ours.send([b"unheard"])
    await theirs.send([b"heard"])
    assert await read(ours) == b"heard"
    with trio.move_on_after(1000) as waited:
        await read(theirs)
    assert waited.cancelled_caught
    ours.out.hold(False)
    assert await read(theirs) == b"unheard"


async def test_who_dies_is_heard_to_the_end_and_hears_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = links()
    await ours.send(Interrupt([1]))
    await ours.aclose()
    assert (await theirs.receive())[0] == Interrupt([1])
    with pytest.raises(EndOfStream):
        await theirs.receive()
    with pytest.raises(LinkBroken):
        await theirs.send(Drain())
    with pytest.raises(LinkBroken):
        await ours.receive()


async def test_a_cut_connection_loses_what_was_under_way_at_both_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = pipes()
    await ours.send([b"lost"])
    ours.cut()
    for waits in (
        lambda: read(ours),
        lambda: read(theirs),
        lambda: ours.send([b"x"]),
        lambda: theirs.send([b"x"]),
    ):
        call: Callable[[], Awaitable[object]] = waits
        with pytest.raises(trio.BrokenResourceError):
            await call()


async def test_a_stopped_process_neither_hears_nor_speaks_until_it_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = pipes()
    ours.freeze(True)
    await theirs.send([b"to the stopped"])
    heard: list[tuple[float, bytes]] = []

    async def speak() -> None:
        await ours.send([b"from the stopped"])

    async def hear(pipe: MemoryPipe) -> None:
        data = await read(pipe)
        heard.append((trio.current_time(), data))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(speak)
        nursery.start_soon(hear, ours)
        nursery.start_soon(hear, theirs)
        await trio.sleep(5)
        assert not heard
        ours.freeze(False)
    assert sorted(data for _, data in heard) == [b"from the stopped", b"to the stopped"]
    assert {at for at, _ in heard} == {began + 5}


async def test_a_sender_waits_for_a_reader_that_does_not_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = pipes()
    await ours.send([bytes(CAPACITY)])
    with trio.move_on_after(1) as waited:
        await ours.send([b"more"])
    assert waited.cancelled_caught and not ours.torn
    assert len(await read(theirs, CAPACITY)) == CAPACITY
    await ours.send([b"more"])
    assert ours.blocked_s == 1
    with pytest.raises(trio.BrokenResourceError):
        theirs.die()
        await ours.send([b"nobody"])


async def test_a_frame_can_be_lost_or_said_twice(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = links()
    ours._pipe.out.edit = lambda frame: [] if b"Drain" in frame else [frame, frame]  # type: ignore[attr-defined]
    await ours.send(Drain())
    await ours.send(Interrupt([7]))
    assert [(await theirs.receive())[0] for _ in range(2)] == [Interrupt([7]), Interrupt([7])]
