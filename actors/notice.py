"""The notice that a process must end: SIGTERM, from the machine's owner. The launcher ends actors
by SIGKILL, which loses nothing; a notice leaves time to return unfinished rollouts.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

GONE = 128 + signal.SIGTERM
"""Exit status of an actor that was told to end."""


@asynccontextmanager
async def open_notice() -> AsyncIterator[trio.Event]:
    """Yield an event that the first SIGTERM sets; without it, the signal ends the process."""
    noticed = trio.Event()

    async def wait() -> None:
        async for _ in signals:
            noticed.set()

    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            yield noticed
            nursery.cancel_scope.cancel()
