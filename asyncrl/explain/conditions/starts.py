"""Starts of agents' programs: many attempts wait for the start of others."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts
from asyncrl.messages import StartCounts
from asyncrl.words import duration

LATE_S = 30.0
"""Seconds until the last attempt that waits has started."""


def in_words(starts: StartCounts) -> str:
    """Say how many attempts wait to start, and for how long that keeps them.

    >>> in_words(StartCounts(waiting=64, starting=2, most=2, seconds=9.0))
    '64 attempts wait to start; a start takes 9 s, and 2 start at a time'
    >>> in_words(StartCounts(waiting=1, starting=1, most=1, seconds=0.0))
    '1 attempt waits to start; 1 starts at a time'
    """
    attempts = "1 attempt waits" if starts.waiting == 1 else f"{starts.waiting} attempts wait"
    took = f"a start takes {duration(starts.seconds)}, and " if starts.seconds else ""
    some = "1 starts" if starts.most == 1 else f"{starts.most} start"
    return f"{attempts} to start; {took}{some} at a time"


def _slow_starts(facts: RunFacts, limit: float) -> Iterator[Finding]:
    starts = facts.starts
    if starts is not None and starts.waiting and starts.left_s > limit:
        yield Finding(
            "slow_starts",
            f"{in_words(starts)}, so the last one starts in {duration(starts.left_s)}: write "
            "the agent as a function (agent.run = 'module:name'), which starts in milliseconds, "
            "import less in the program, open a smaller sandbox, or lower agent.concurrency.",
        )


SLOW_STARTS = Condition(
    names=("slow_starts",),
    measures="seconds until the last attempt of an agent's program that waits has started",
    bound=LATE_S,
    settings=("agent.run", "agent.concurrency"),
    find=_slow_starts,
)
