"""Restart policies: one for one within a budget, or not at all. Invariant: whoever supervises a
child leaves no child behind.

A rollout or reward actor that fails is started again; a trainer or coordinator that fails (a budget
of no restarts) ends the run, with the child's own traceback.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import trio


class Child(Protocol):
    """What is supervised; `asyncrl.processes.process.Process` is one."""

    async def wait(self) -> int:
        """The exit code, negative for a signal."""
        ...

    async def kill_group(self) -> int:
        """Kill it, and return once it and all that it started is gone. A cancellation waits for
        that."""
        ...

    def tail(self) -> str:
        """The last traceback, or lines, that it logged."""
        ...


class RestartBudget(msgspec.Struct, frozen=True):
    """At most `restarts` restarts within any `window_s` seconds."""

    restarts: int
    window_s: float

    def allows(self, restarted: Sequence[float], now: float) -> bool:
        """Whether a child restarted at the times `restarted` may be restarted at `now`."""
        return sum(time > now - self.window_s for time in restarted) < self.restarts


NO_RESTART = RestartBudget(0, 1.0)
"""For those without whom there is no run."""


class ActorFailed(Exception):
    """An actor failed, and is not restarted."""

    def __init__(self, name: str, code: int, traceback: str, *, restarts: int = 0) -> None:
        after = f" after {restarts} restart{'s' * (restarts != 1)}" if restarts else ""
        said = f"; the last it said:\n{traceback}" if traceback else "; it said nothing"
        super().__init__(f"{name} {describe_exit(code)}{after}{said}")
        self.name, self.code, self.traceback = name, code, traceback


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def supervise(
    name: str,
    start: Callable[[int], Child],
    *,
    budget: RestartBudget,
    on_exit: Callable[[str, int, bool], None],
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Run a child until it ends with exit code 0; `start(incarnation)`, counted from 0, starts it.

    `on_exit(name, code, restarting)` is called at each end, before the next start. Raises
    ActorFailed for a failure beyond `budget`. A child that is not `wanted` any more when it ends is
    not started again, and its failure is none. Whatever ends this, a cancellation too, the child
    and all it started are dead when it returns.
    """
    restarted: list[float] = []
    incarnation = 0
    while True:
        child = start(incarnation)
        try:
            code = await child.wait()
        finally:
            await child.kill_group()
        now = trio.current_time()
        needed = code != 0 and wanted()
        restarting = needed and budget.allows(restarted, now)
        on_exit(name, code, restarting)
        if not needed:
            return
        if not restarting:
            raise ActorFailed(name, code, child.tail(), restarts=incarnation)
        restarted = [time for time in restarted if time > now - budget.window_s] + [now]
        incarnation += 1
