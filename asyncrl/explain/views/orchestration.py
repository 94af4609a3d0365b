"""Episodes as orchestration traces: who called the model in which role, and who handed over to
whom, in the form of the survey "Reinforcement Learning for LLM-based Multi-Agent Systems through
Orchestration Traces": events, edges between them, rewards, costs.

Invariant: each turn is one event of type `message`, and every edge leads to a later event.

Each role is an agent; turns without one are those of `agent`. The journal has no clock: `t` is the
place of an event. A turn that follows one of another role is a hand-off.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from asyncrl.explain.views.seen_rollouts import SeenRollout

UNNAMED, OUTSIDE = "agent", "environment"
"""The agent of turns without a role, and what is no agent."""


class OrchestrationEvent(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from"}):
    """One event. `turn` is the number of the turn that it tells of; `source` is `from` in JSON."""

    id: int
    t: int
    type: Literal["spawn", "message", "tool_call", "return"]
    agent: str
    role: str
    source: str
    to: str
    turn: int | None = None
    tool: str = ""
    finish: str = ""


class OrchestrationEdge(msgspec.Struct, frozen=True):
    """The way from one event to another: the same context goes on (`continue`), another role takes
    over (`handoff`), or an agent is `spawn`ed."""

    src: int
    dst: int
    type: Literal["continue", "handoff", "spawn"]


class OrchestrationReward(msgspec.Struct, frozen=True):
    """A reward of an event's turn, or, where both are null, of the whole."""

    event: int | None
    agent: str | None
    value: float


class OrchestrationTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One episode. `costs` are the sampled tokens of each agent."""

    rollout: int
    group: int
    prompt_index: int
    split: str
    status: str
    agents: list[str]
    events: list[OrchestrationEvent]
    edges: list[OrchestrationEdge]
    rewards: list[OrchestrationReward]
    costs: dict[str, int]


def trace_of(seen: SeenRollout) -> OrchestrationTrace:
    """The trace of an episode."""
    events, edges, rewards = (
        list[OrchestrationEvent](),
        list[OrchestrationEdge](),
        list[OrchestrationReward](),
    )
    said: list[int] = []  # the event of each turn
    costs: dict[str, int] = {}

    def add(
        kind: Literal["spawn", "message", "tool_call", "return"], agent: str, **more: str | int
    ) -> int:
        number = len(events)
        role = "" if agent == UNNAMED else agent
        facts = {"source": agent, "to": OUTSIDE, **more}
        events.append(
            OrchestrationEvent(id=number, t=number, type=kind, agent=agent, role=role, **facts)  # type: ignore[arg-type]
        )
        return number

    roles = [turn.role or UNNAMED for turn in seen.turns]
    for number, (turn, agent) in enumerate(zip(seen.turns, roles, strict=True)):
        before = said[-1] if said else None
        if agent not in costs:
            spawned = add("spawn", agent, source=roles[number - 1] if said else OUTSIDE, to=agent)
            if before is not None:
                edges.append(OrchestrationEdge(before, spawned, "spawn"))
        handed_to = roles[number + 1] if number + 1 < len(roles) else OUTSIDE
        event = add(
            "message",
            agent,
            to=handed_to if handed_to != agent else OUTSIDE,
            turn=number,
            finish=turn.finish,
        )
        if before is not None and roles[number - 1] != agent:
            edges.append(OrchestrationEdge(before, event, "handoff"))
        if turn.parent is not None:
            edges.append(OrchestrationEdge(said[turn.parent], event, "continue"))
        if turn.failed:
            add("tool_call", agent, turn=number, tool=turn.failed)
        if turn.reward is not None:
            rewards.append(OrchestrationReward(event, agent, turn.reward))
        costs[agent] = costs.get(agent, 0) + turn.tokens
        said.append(event)
    if roles:
        last = add("return", roles[-1])
        edges.append(OrchestrationEdge(said[-1], last, "continue"))
    if seen.reward is not None:
        rewards.append(OrchestrationReward(None, None, seen.reward))
    return OrchestrationTrace(
        rollout=seen.rollout,
        group=seen.group,
        prompt_index=seen.prompt_index,
        split=seen.split,
        status=seen.status,
        agents=[*costs],
        events=events,
        edges=edges,
        rewards=rewards,
        costs=costs,
    )
