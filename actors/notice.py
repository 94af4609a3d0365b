"""The notice that a process is to end: SIGTERM, from whoever has the machine.

The launcher ends actors by SIGKILL, whom nothing is lost by; a notice leaves time to give back what
is being generated.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

GONE = 128 + signal.SIGTERM
"""Exit status of an actor that ended because it was told to."""


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
