"""The table of waits. Invariant: every wait has a name, an owner and a bound, and is in the table
while it lasts. There is no other way to wait. The bound is a number of seconds (`on`), or, if no
number is right, the event that ends the wait (`until`).

Each process has one `Waits`, which is passed to all code that waits. Time is trio's clock, so it is
virtual in a simulated run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import trio

from asyncrl.messages import Wait


class WaitExpired(Exception):
    """A wait reached its deadline."""

    def __init__(self, name: str, owner: str, seconds: float) -> None:
        super().__init__(f"{owner} waited {seconds:g} s for {name}, which is the limit")
        self.name, self.owner, self.seconds = name, owner, seconds


class _Open(msgspec.Struct, eq=False):
    name: str
    owner: str
    since: float
    bound: float | str


class _Cause(msgspec.Struct):
    """Seconds waited under one name: `seconds` until `since`, and from then on while `open` waits
    of that name last."""

    seconds: float = 0.0
    since: float = 0.0
    open: int = 0

    def until(self, now: float) -> float:
        return self.seconds + (now - self.since if self.open else 0.0)


class Waits:
    """The waits of a process, now and so far. Every method is called from the trio thread."""

    def __init__(self, scopes: set[trio.CancelScope] | None = None) -> None:
        """`scopes` has those of the open waits with a deadline, which its owner may put off."""
        self._scopes = set[trio.CancelScope]() if scopes is None else scopes
        self._open: dict[int, _Open] = {}
        self._causes: dict[str, _Cause] = {}

    @contextmanager
    def until(self, event: str, name: str, *, owner: str) -> Iterator[None]:
        """Wait for `name` inside the block, until it comes or `event` (in words) ends the block
        from outside, by an exception or a cancellation. The caller makes sure that the event does
        so."""
        if not event:
            raise ValueError(f"the wait for {name} needs an event that ends it")
        with self._listed(name, owner, event):
            yield

    @contextmanager
    def on(self, name: str, *, owner: str, deadline_s: float) -> Iterator[None]:
        """Wait for `name` inside the block, at most `deadline_s` seconds (positive, finite).

        Raises `WaitExpired` at the deadline, unless the block had finished. A cancellation from
        outside passes through; either way the wait leaves the table.
        """
        if not 0 < deadline_s < math.inf:
            raise ValueError(
                f"the wait for {name} needs a deadline of more than 0 and less than infinite "
                f"seconds, not {deadline_s}"
            )
        with (
            self._listed(name, owner, deadline_s),
            trio.CancelScope(deadline=trio.current_time() + deadline_s) as scope,
        ):
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise WaitExpired(name, owner, deadline_s)

    @contextmanager
    def _listed(self, name: str, owner: str, bound: float | str) -> Iterator[None]:
        """Keep a wait in the table, and count its seconds, while the block lasts."""
        wait = _Open(name, owner, trio.current_time(), bound)
        self._open[id(wait)] = wait
        try:
            with self.idle_for(name):
                yield
        finally:
            del self._open[id(wait)]

    @contextmanager
    def idle_for(self, name: str) -> Iterator[None]:
        """Count the seconds of the block as waited for `name`. An engine without work is not in
        the table: it waits for no one."""
        cause = self._causes.setdefault(name, _Cause())
        if not cause.open:
            cause.since = trio.current_time()
        cause.open += 1
        try:
            yield
        finally:
            cause.open -= 1
            if not cause.open:
                cause.seconds += trio.current_time() - cause.since

    def table(self) -> list[Wait]:
        """The open waits, oldest first."""
        now = trio.current_time()
        return [Wait(w.name, w.owner, now - w.since, w.bound) for w in self._open.values()]

    def idle(self) -> dict[str, float]:
        """Seconds waited so far, by name, open waits included. Waits of one name that overlap count
        once."""
        now = trio.current_time()
        return {name: cause.until(now) for name, cause in self._causes.items()}


class PulseStatistics(msgspec.Struct, frozen=True):
    """`set` says whether the next wait returns at once, `waiting` whether a task waits."""

    set: bool
    waiting: bool


class Pulse:
    """A signal that something changed: wakes one pump loop, without polling. Many `set`s before a
    wait count as one.

    `set` is synchronous. `wait` takes the pulse in the step in which it returns: a cancelled one
    has taken nothing, and the next `wait` returns at once.
    """

    def __init__(self) -> None:
        self._set = False
        self._lot = trio.lowlevel.ParkingLot()
        self._waiting = False

    def set(self) -> None:
        self._set = True
        self._lot.unpark()

    async def wait(self) -> None:
        """Return once `set` was called since the last wait returned. Raises
        `trio.BusyResourceError` if another task waits."""
        if self._waiting:
            raise trio.BusyResourceError("another task waits for this pulse; give each its own")
        self._waiting = True
        try:
            if self._set:
                await trio.lowlevel.checkpoint()
            while not self._set:
                await self._lot.park()
            self._set = False
        finally:
            self._waiting = False

    def statistics(self) -> PulseStatistics:
        return PulseStatistics(self._set, self._waiting)
