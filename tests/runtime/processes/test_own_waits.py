"""Waits of a process that is stopped."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from asyncrl.runtime.ipc.waits import WaitExpired
from asyncrl.runtime.processes.own_waits import own_waits


async def test_time_in_which_its_process_did_not_run_is_no_time_of_a_wait(
    mock_clock: trio.testing.MockClock,
) -> None:
    """A process that was stopped for longer than a deadline reads what came meanwhile, and has as
    much time as it had. `mock_clock` jumps amid a task, as time does for a process that stops."""
    waits = own_waits()
    send, receive = trio.open_memory_channel[int](10)
    with waits.on("answers", owner="me", deadline_s=10):
        await trio.lowlevel.checkpoint()
        mock_clock.jump(500)
        for number in range(3):
            send.send_nowait(number)
            await trio.lowlevel.checkpoint()
            assert await receive.receive() == number
    late = own_waits()
    with (
        pytest.raises(WaitExpired),
        late.on("one that is late", owner="me", deadline_s=10),
    ):
        await trio.lowlevel.checkpoint()
        mock_clock.jump(500)
        await trio.lowlevel.checkpoint()
        for _ in range(11):  # in which it runs, a little at a time
            mock_clock.jump(0.95)
            await trio.lowlevel.checkpoint()
