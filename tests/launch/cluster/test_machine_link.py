"""Either end of an agent's link: it says that it is alive, and sees when the other does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from memory_link import memory_links

from asyncrl.launch.cluster.machine_link import BEAT_S, SILENCE_S, UNREAD, MachineLink
from asyncrl.messages import Alive, Equipped, RunOver
from asyncrl.runtime.ipc.errors import EndOfStream
from asyncrl.runtime.ipc.link import Link


@asynccontextmanager
async def kept() -> AsyncIterator[tuple[MachineLink, Link, list[str]]]:
    """An end that is kept, the link at its other end, and the reasons for which that was lost."""
    here, there = memory_links()
    reasons = list[str]()
    end = MachineLink(here, reasons.append)
    async with there, trio.open_nursery() as nursery:
        nursery.start_soon(end.keep)
        yield end, there, reasons
        nursery.cancel_scope.cancel()


async def test_messages_go_in_order_and_signs_of_life_between_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with kept() as (end, there, _):
        end.send(Equipped(1))
        end.send(RunOver())
        messages = [(await there.receive())[0] for _ in range(5)]
    assert [message for message in messages if not isinstance(message, Alive)] == [
        Equipped(1),
        RunOver(),
    ]
    assert trio.current_time() == 2 * BEAT_S


async def test_signs_of_life_are_not_received_and_put_off_the_silence(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with kept() as (end, there, reasons):

        async def live() -> None:
            for _ in range(10):
                await trio.sleep(SILENCE_S - 1.0)
                await there.send(Alive())
            await there.send(RunOver())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(live)
            assert (await end.receive())[0] == RunOver()
        assert not reasons


async def test_an_end_that_is_silent_is_lost(autojump_clock: trio.testing.MockClock) -> None:
    async with kept() as (end, there, reasons):
        await there.send(RunOver())
        await trio.sleep(SILENCE_S / 2)
        await end.receive()
        await trio.sleep(SILENCE_S - 0.5)
        assert not reasons
        await trio.sleep(1.5)
        assert reasons == [f"sent nothing for {SILENCE_S:g} s"]


async def test_an_end_that_reads_nothing_is_lost() -> None:
    here, _ = memory_links()
    reasons = list[str]()
    end = MachineLink(here, reasons.append)
    for _ in range(UNREAD):
        end.send(RunOver())
    assert not reasons
    end.send(RunOver())
    assert reasons == [f"left {UNREAD} messages unread"]


async def test_a_link_that_ends_is_seen_by_its_receiver(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with kept() as (end, there, reasons):
        await there.aclose()
        with pytest.raises(EndOfStream):
            await end.receive()
        await trio.sleep(BEAT_S + 1.0)  # it writes meanwhile, and that is no error
        assert not reasons
