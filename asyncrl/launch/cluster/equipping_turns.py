"""Turns of machines that are sent the model's files. Invariant: a machine that takes them slowly,
or not at all, keeps no other one waiting for longer than TURN_S.

    waits ── newest first ──▶ has a place, for TURN_S ──▶ goes on beside the places, among the slow
                                     └──▶ has taken all          └──▶ is given up: one slow too many

Whoever holds the token can join any number of times under new names, so a share for each name
would bound nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

PLACES = 8
"""Machines that are sent files at one time, in their turn: each takes memory for them."""
SLOW = 8
"""Machines whose turn is over, and that go on taking files."""
TURN_S = 1.0
"""Seconds of a turn; some MiB take milliseconds."""


class EquippingTurns:
    """The turns of one launcher's machines."""

    def __init__(self) -> None:
        self._free = PLACES
        self._waiting: list[trio.Event] = []
        self._slow: dict[trio.CancelScope, None] = {}  # the longest first

    async def turn(
        self,
        queue: Callable[[], Awaitable[None]],
        sent: Callable[[], Awaitable[None]],
        most_s: float,
    ) -> bool:
        """Wait for a place, `queue` the files, and wait until they are `sent`; at most `most_s`.
        Returns False for a machine that has not taken them, and is to be given up."""
        await self._place()
        began, done = trio.current_time(), False
        try:
            await queue()
            with trio.move_on_after(min(TURN_S, most_s)):
                await sent()
                done = True
        finally:
            self._leave()
        if done:
            return True
        with trio.CancelScope(deadline=began + most_s) as scope:
            self._slow[scope] = None
            if len(self._slow) > SLOW:
                longest = next(iter(self._slow))
                del self._slow[longest]
                longest.cancel()
            try:
                await sent()
                done = True
            finally:
                self._slow.pop(scope, None)
        return done

    async def _place(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._free:
            self._free -= 1
            return
        self._waiting.append(mine := trio.Event())
        try:
            await mine.wait()
        except trio.Cancelled:
            if mine.is_set():
                self._leave()
            else:
                self._waiting.remove(mine)
            raise

    def _leave(self) -> None:
        """Give the place to the machine that came last: one that waits for long may be of those
        that fill the queue."""
        if self._waiting:
            self._waiting.pop().set()
        else:
            self._free += 1
