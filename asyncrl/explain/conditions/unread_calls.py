"""Replies of agents' models that look like calls of tools, and that the gateway could not read."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts

FEW = 32
"""Replies to calls with tools from which on their share means something."""


def _unread_calls(facts: RunFacts, limit: float) -> Iterator[Finding]:
    share = facts.unread_calls / facts.tool_replies if facts.tool_replies else 0.0
    if facts.tool_replies >= FEW and share > limit:
        yield Finding(
            "unread_calls",
            f"{share:.0%} of the {facts.tool_replies} replies of agents' calls with tools look "
            "like calls but cannot be read, so the agent does nothing, and that is "
            "trained: compare what the model writes (asyncrl rollouts) with its chat template, and "
            "set model.path to a model whose template has the form that it writes.",
        )


UNREAD_CALLS = Condition(
    names=("unread_calls",),
    measures="share of the replies to calls with tools that look like a call but are none",
    bound=0.1,
    settings=("model.path",),
    find=_unread_calls,
)
