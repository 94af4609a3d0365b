"""The table of waits. Invariant: every wait has a name, an owner and a bound, and is in the table
while it lasts. There is no other way to wait. The bound is a number of seconds (`on`), or, if no
number is right, the event that ends the wait (`until`).

Each process has one `Waits`, which is passed to all code that waits. Time is trio's clock, so it is
virtual in a simulated run.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from types import TracebackType

import msgspec
import trio

from asyncrl.messages import Wait


class WaitExpired(Exception):
    """A wait reached its deadline."""

    def __init__(self, name: str, owner: str, seconds: float) -> None:
        super().__init__(f"{owner} waited {seconds:g} s for {name}, which is the limit")
        self.name, self.owner, self.seconds = name, owner, seconds


class _Cause(msgspec.Struct, eq=False):
    """Seconds waited under one name: `seconds` until `since`, and from then on while `open` waits
    of that name last. A block that it is the context of is one."""

    seconds: float = 0.0
    since: float = 0.0
    open: int = 0

    def until(self, now: float) -> float:
        return self.seconds + (now - self.since if self.open else 0.0)

    def __enter__(self) -> None:
        if not self.open:
            self.since = trio.current_time()
        self.open += 1

    def __exit__(self, *_: object) -> None:
        self.open -= 1
        if not self.open:
            self.seconds += trio.current_time() - self.since


class _ListedWait(msgspec.Struct, eq=False):
    """A wait that is in the `table`, and whose seconds count for its cause, while its block
    lasts."""

    table: dict[int, _ListedWait]
    cause: _Cause
    name: str
    owner: str
    bound: float | str
    since: float = 0.0

    def __enter__(self) -> None:
        self.since = trio.current_time()
        self.table[id(self)] = self
        self.cause.__enter__()

    def __exit__(self, *_: object) -> None:
        self.cause.__exit__()
        del self.table[id(self)]


class _BoundedWait:
    """A wait whose block is cancelled after so many seconds, which raises WaitExpired."""

    def __init__(self, wait: _ListedWait, seconds: float, scopes: set[trio.CancelScope]) -> None:
        self._wait, self._seconds, self._scopes = wait, seconds, scopes

    def __enter__(self) -> None:
        self._wait.__enter__()
        self._scope = trio.CancelScope(deadline=self._wait.since + self._seconds)
        self._scope.__enter__()
        self._scopes.add(self._scope)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._scopes.discard(self._scope)
        try:
            caught = self._scope.__exit__(kind, error, trace)
        finally:
            self._wait.__exit__()
        if self._scope.cancelled_caught:
            raise WaitExpired(self._wait.name, self._wait.owner, self._seconds) from None
        return caught


class Waits:
    """The waits of a process, now and so far. Every method is called from the trio thread."""

    def __init__(self, scopes: set[trio.CancelScope] | None = None) -> None:
        """`scopes` has those of the open waits with a deadline, which its owner may put off."""
        self._scopes = set[trio.CancelScope]() if scopes is None else scopes
        self._open: dict[int, _ListedWait] = {}
        self._causes: dict[str, _Cause] = {}

    def until(self, event: str, name: str, *, owner: str) -> AbstractContextManager[None]:
        """Wait for `name` inside the block, until it comes or `event` (in words) ends the block
        from outside, by an exception or a cancellation. The caller makes sure that the event does
        so."""
        if not event:
            raise ValueError(f"the wait for {name} needs an event that ends it")
        return self._listed(name, owner, event)

    def on(
        self, name: str, *, owner: str, deadline_s: float
    ) -> AbstractContextManager[None, bool | None]:
        """Wait for `name` inside the block, at most `deadline_s` seconds (positive, finite).

        Raises `WaitExpired` at the deadline, unless the block had finished. A cancellation from
        outside passes through; either way the wait leaves the table.
        """
        if not 0 < deadline_s < math.inf:
            raise ValueError(
                f"the wait for {name} needs a deadline of more than 0 and less than infinite "
                f"seconds, not {deadline_s}"
            )
        return _BoundedWait(self._listed(name, owner, deadline_s), deadline_s, self._scopes)

    def _listed(self, name: str, owner: str, bound: float | str) -> _ListedWait:
        return _ListedWait(self._open, self._cause(name), name, owner, bound)

    def _cause(self, name: str) -> _Cause:
        if (cause := self._causes.get(name)) is None:
            cause = self._causes[name] = _Cause()
        return cause

    def idle_for(self, name: str) -> AbstractContextManager[None]:
        """Count the seconds of the block as waited for `name`. An engine without work is not in
        the table: it waits for no one."""
        return self._cause(name)

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
