"""Attempts of agents and calls of tools that fail. Infrastructure that fails is trained as if the
model had: one system learned from 92 % of such zeros."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts

FAILED = 0.3
"""Share of the last attempts, or calls, that may fail."""
FEW_ATTEMPTS, FEW_CALLS = 16, 32
"""Attempts, and calls, from which on their share means something."""
NAMED = 3
"""Kinds that are named, the most frequent first."""
SANDBOX = frozenset({"exit", "crashed", "timeout", "no facts", "sandbox", "image"})
"""Kinds of failed attempts that are more likely of what an agent runs in than of its code."""


def _share(failed: Mapping[str, int], of: int) -> float:
    return sum(failed.values()) / of if of else 0.0


def kinds(failed: Mapping[str, int]) -> str:
    """The most frequent kinds with their counts.

    >>> kinds({"timeout": 9, "exit": 2})
    '9 timeout, 2 exit'
    """
    return ", ".join(f"{count} {name}" for name, count in [*failed.items()][:NAMED])


def _failed_attempts(facts: RunFacts, limit: float) -> Iterator[Finding]:
    recent = facts.recent
    share = _share(recent.failed_attempts, recent.attempts)
    if recent.attempts >= FEW_ATTEMPTS and share > limit:
        first = next(iter(recent.failed_attempts))
        remedy = (
            "make sure that what it runs in (agent.sandbox, its containers and servers) works and "
            "has room, and that agent.episode_s is long enough"
            if first in SANDBOX
            else "correct the program of agent.run; asyncrl play runs one episode of it"
        )
        yield Finding(
            "failed_attempts",
            f"{share:.0%} of the last {recent.attempts} attempts of agents failed "
            f"({kinds(recent.failed_attempts)}; the logs of agents say why): {remedy}.",
        )


def _failed_tools(facts: RunFacts, limit: float) -> Iterator[Finding]:
    recent = facts.recent
    share = _share(recent.failed_tools, recent.calls)
    if recent.calls >= FEW_CALLS and share > limit:
        yield Finding(
            "failed_tools",
            f"{share:.0%} of the last {recent.calls} calls of agents were failed tool calls "
            f"({kinds(recent.failed_tools)}): if the tools are at fault, and not the model, it "
            "learns from their failures; correct the tools, or keep such calls out of the loss "
            "(agent.mask_failed).",
        )


FAILURES = (
    Condition(
        names=("failed_attempts",),
        measures="share of the last 256 attempts of agents that failed",
        bound=FAILED,
        settings=("agent.sandbox", "agent.episode_s", "agent.run"),
        find=_failed_attempts,
    ),
    Condition(
        names=("failed_tools",),
        measures="share of the last 256 calls of agents that were failed tool calls",
        bound=FAILED,
        settings=("agent.mask_failed",),
        find=_failed_tools,
    ),
)
