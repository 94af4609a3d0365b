"""The `close()` of an environment, or of an agent that is an object or a function, at the end of
each attempt, whatever ended it.

Invariant: it takes at most CLOSE_S, if Python can interrupt it at all, and its failure is a
sentence: it changes nothing in how the attempt ended.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
from typing import Any

CLOSE_S = 5.0
"""Seconds that an attempt may take to close everything."""


class ToldToEnd(BaseException):
    """Raised in an agent's code that keeps its loop from running when it is told to end."""


class CloseOverran(Exception):
    """Raised in a `close()` that has had its time."""


class Closing:
    """Things that an attempt closes at its end, the last one first. Used in the main thread."""

    def __init__(self) -> None:
        self._things: list[Any] = []
        self.begun = False

    def add(self, thing: Any) -> None:
        """Register an object, if it has a method `close`."""
        if callable(getattr(thing, "close", None)):
            self._things.append(thing)

    @property
    def needed(self) -> bool:
        """True if there is something to close."""
        return bool(self._things)

    async def close(self, within_s: float = CLOSE_S) -> str:
        """Close everything. Returns what went wrong, "" if nothing did."""
        self.begun = True
        if not self._things:
            return ""
        wrong = list[str]()
        before = signal.signal(signal.SIGALRM, _overran)
        # the timer ends what does not let the loop run, and the timeout what waits in it
        signal.setitimer(signal.ITIMER_REAL, within_s)
        try:
            async with asyncio.timeout(within_s):
                while self._things:
                    await self._close_one(self._things.pop(), wrong)
        except (TimeoutError, CloseOverran):
            wrong.append(f"it took more than {within_s:g} s")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
        return "; ".join(wrong)

    async def _close_one(self, thing: Any, wrong: list[str]) -> None:
        try:
            closed = thing.close()
            if inspect.isawaitable(closed):
                await closed
        except (CloseOverran, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 (a user's code may raise anything)
            wrong.append(f"{type(error).__name__}: {error}")


def _overran(number: int, frame: object) -> None:
    """Raise CloseOverran in what keeps the loop from running; an idle loop has a timeout of its
    own."""
    if asyncio.current_task() is not None:
        raise CloseOverran
