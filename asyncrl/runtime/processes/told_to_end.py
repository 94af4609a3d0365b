"""Signals that tell a command to end. Invariant: until all that it has begun is cleaned up, a
further one interrupts nothing: it is told as the first was."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio


def ending() -> list[signal.Signals]:
    """The signals that end a command. One that was started with SIGHUP ignored (`nohup`) goes on
    when its terminal hangs up."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


@asynccontextmanager
async def obeying(obey: Callable[[signal.Signals], object]) -> AsyncIterator[None]:
    """Call `obey` with each signal that comes in the block. What the block cleans up at its end, of
    itself or by an error, is in it."""
    with trio.open_signal_receiver(*ending()) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_listen, signals, obey)
            yield
            nursery.cancel_scope.cancel()


async def _listen(signals: AsyncIterator[int], obey: Callable[[signal.Signals], object]) -> None:
    async for number in signals:
        obey(signal.Signals(number))
