"""Waits of the coordinator's loop: for any change, or for a condition."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from asyncrl.runtime.ipc.waits import Pulse, WaitExpired, Waits
from asyncrl.runtime.processes.standstill import RunClock

logger = logging.getLogger(__name__)


class Changes:
    """Wakes the one task that waits for something to happen. Many changes before a wait count as
    one."""

    def __init__(self, waits: Waits, clock: RunClock, stall_s: float) -> None:
        """`stall_s` is more than the seconds between two ticks (watchdog.py), each of which is a
        change."""
        self._waits, self._clock = waits, clock
        self._stall_s = stall_s
        self._pulse = Pulse()

    def set(self) -> None:
        """Note that something happened. Never waits."""
        self._pulse.set()

    async def next(self, name: str) -> None:
        """Wait until something happened since the last wait. The wait expires only after a
        standstill of this process; then there is enough to do."""
        with (
            suppress(WaitExpired),
            self._waits.on(name, owner="coordinator", deadline_s=self._stall_s),
        ):
            await self._pulse.wait()

    async def until(self, name: str, done: Callable[[], bool], deadline: float) -> None:
        """Wait until `done()`, or until `deadline` (the run's clock), which is logged."""
        while not done():
            if not await self._clock.repeat(partial(self.next, name), deadline):
                logger.warning("drained without %s", name)
                return
