"""Settings of agents, who play rollouts of many turns."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import Section

PLAYED_ELSEWHERE = "http"
"""`agent.run` where programs elsewhere play."""


class AgentConfig(Section, frozen=True):
    """Agents that play a prompt's rollouts as episodes of many turns (docs/agents.md)."""

    resumable = (
        "actors",
        "concurrency",
        "episode_s",
        "call_s",
        "eval_s",
        "max_calls",
        "attempts",
        "sandbox",
        "paths",
        "mask_failed",
        "history",
        "alarm_rewritten",
        "port",
    )

    run: Annotated[
        str | tuple[str, ...],
        Meta(
            description=(
                "who plays: `module:name`, a program and its arguments, or `http` for programs "
                "that ask for episodes; empty: nobody, a rollout is one turn"
            )
        ),
    ] = ""
    actors: Annotated[int, Meta(ge=1, description="agents processes")] = 1
    concurrency: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description="episodes at a time, at each agents actor; fewer where engines are busy",
        ),
    ] = 64
    episode_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds for which an agent may have the ball: its calls do not count",
        ),
    ] = 300.0
    call_s: Annotated[float, Meta(gt=0, description="seconds of one call")] = 600.0
    eval_s: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "seconds for which the evaluation of a version holds up the next one, where "
                "engines keep one alone; then the rest is answered as mixed"
            ),
        ),
    ] = 300.0
    max_calls: Annotated[int, Meta(ge=1, description="calls of an attempt, at most")] = 32
    attempts: Annotated[
        int, Meta(ge=1, description="failed attempts after which an episode is given up")
    ] = 3
    sandbox: Annotated[
        Literal["none", "bwrap"],
        Meta(
            description=(
                "of a program of `run`, and of what tools start by asyncrl.sandbox.programs: "
                "bwrap, it "
                "reaches the model and gives no reward; none, it is this user's process"
            )
        ),
    ] = "none"
    paths: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "files and folders that a program of `run` sees in the sandbox, besides the "
                "system and what its command names"
            )
        ),
    ] = ()
    mask_failed: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "tools whose failed calls, named by the agent, are left out of the loss; `*` "
                "stands for all"
            )
        ),
    ] = ()
    history: Annotated[
        Literal["template", "as_sampled"],
        Meta(
            description=(
                "of a chat's earlier replies, what the next call is given: what the chat template "
                "makes of them, or the very tokens that were sampled"
            )
        ),
    ] = "template"
    alarm_rewritten: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description=(
                "above this share of later calls that are given a reply with other tokens than "
                "were sampled: alarm"
            ),
        ),
    ] = 0.1
    port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description=(
                "on loopback, of the first agents actor's API; the next has the next one; 0: any"
            ),
        ),
    ] = 0
