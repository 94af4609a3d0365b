"""Supervision of one child: it is started, waited for, and started again within a budget.
Invariant: when `supervise` returns or raises, its child is dead.

`asyncrl.runtime.processes.run_supervisor` supervises a whole run by it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import trio

from asyncrl.runtime.processes.process import last_words


class Child(Protocol):
    """A child of a supervisor: an `asyncrl.runtime.processes.process.Process`, one on another
    machine, or a simulated one."""

    @property
    def displaced(self) -> bool:
        """True if it has ended with its machine, which is no failure of its own."""
        ...

    async def wait(self) -> int:
        """The exit code, negative for a signal."""
        ...

    def kill(self) -> None:
        """Kill the child alone, and return at once. A child that has ended is left as it is."""
        ...

    async def kill_group(self) -> int:
        """Kill the child, and return its exit code once it and all that it started is gone. A
        cancellation waits for that."""
        ...

    def tail(self) -> str:
        """The last traceback that it logged, or else its last lines."""
        ...


START_AGAIN_S = 5.0
"""Seconds after which a child that could not be started counts as ended: what the machine lacked
may be free again when it is tried once more."""


SHORT_S = 30.0
"""Seconds of a short life."""
PAUSE_S, LONGEST_PAUSE_S = 2.0, 30.0
"""Seconds before a start after the second short life in a row that an error ended, doubled with
each further one, and the most: else what the machine lacks for a moment would use up all
restarts."""


def pause_s(short: int) -> float:
    """Seconds before the next start after so many short lives in a row that an error ended.

    >>> [pause_s(short) for short in range(7)]
    [0.0, 0.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    """
    return 0.0 if short < 2 else min(PAUSE_S * 2.0 ** (min(short, 30) - 2), LONGEST_PAUSE_S)


class NotStarted:
    """A child that could not be started, because of `error`. It ends with code 1."""

    displaced = False

    def __init__(self, error: OSError | MemoryError) -> None:
        self._error = error

    async def wait(self) -> int:
        await trio.sleep(START_AGAIN_S)
        return 1

    def kill(self) -> None:
        pass

    async def kill_group(self) -> int:
        return 1

    def tail(self) -> str:
        return f"it could not be started: {str(self._error) or 'no memory is left'}"


class RestartBudget(msgspec.Struct, frozen=True):
    """At most `restarts` restarts within any `window_s` seconds.

    For example, 2 restarts within 300 s: a child restarted at 0 s and at 100 s may be restarted
    again at 300 s, when the first restart is 300 s old, and not at 299 s.
    """

    restarts: int
    window_s: float

    def allows(self, restarted: Sequence[float], now: float) -> bool:
        """True if a child restarted at the times `restarted` may be restarted at `now`."""
        return sum(time > now - self.window_s for time in restarted) < self.restarts


class ActorFailed(Exception):
    """An actor failed, and is not restarted. `final`: because it would end so again."""

    def __init__(
        self, name: str, code: int, traceback: str, *, restarts: int = 0, final: bool = False
    ) -> None:
        after = f" after {restarts} restart{'s' * (restarts != 1)}" if restarts else ""
        output = f"; its last output:\n{traceback}" if traceback else "; it printed nothing"
        super().__init__(
            f"{last_words(traceback)} (this ended {name}, which is not started again)"
            if final
            else f"{name} {describe_exit(code)}{after}{output}"
        )
        self.name, self.code, self.traceback = name, code, traceback

    @property
    def actor(self) -> tuple[str, int]:
        """Its role and index; an empty role if it is not an actor of a run."""
        role, _, index = self.name.rpartition("-")
        return (role, int(index)) if role else ("", 0)


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
    budget: RestartBudget | None,
    on_exit: Callable[[str, int, bool], None],
    still_needed: Callable[[], bool] = lambda: True,
    final: Callable[[int, str], bool] = lambda code, output: False,
) -> None:
    """Run a child until it ends with exit code 0; `start(incarnation)`, counted from 0, starts it.

    `on_exit(name, code, restarting)` is called at each end, before the next start. Raises
    ActorFailed for a failure beyond `budget`, or one that `final(code, output)` says would come
    again; a child that was displaced spends nothing, and is never judged. Without a budget it is
    never started again. One that an error ends soon, and again, is started after a pause
    (`pause_s`); one that was killed is started at once. A child that is not needed any more when it
    ends, or after the pause, is not started again, and its failure raises nothing.
    """
    restarted: list[float] = []
    incarnation = short = 0
    while True:
        child, began = start(incarnation), trio.current_time()
        try:
            code = await child.wait()
        finally:
            await child.kill_group()
        now = trio.current_time()
        needed = code != 0 and still_needed()
        last = needed and not child.displaced and final(code, child.tail())
        allowed = budget is not None and (child.displaced or budget.allows(restarted, now))
        restarting = needed and allowed and not last
        on_exit(name, code, restarting)
        if not needed:
            return
        if budget is None or not restarting:
            raise ActorFailed(name, code, child.tail(), restarts=incarnation, final=last)
        if not child.displaced:
            restarted = [time for time in restarted if time > now - budget.window_s] + [now]
        incarnation += 1
        failed = code > 0 and not child.displaced and not isinstance(child, NotStarted)
        short = short + 1 if failed and now - began < SHORT_S else 0
        if pause := pause_s(short):
            await trio.sleep(pause)
            if not still_needed():
                return
