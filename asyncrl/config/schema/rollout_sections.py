"""Settings of rollouts: who plays them, their generation and their evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import BASIC, Count, Section

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


class RolloutConfig(Section, frozen=True):
    """Generation of rollouts."""

    resumable = ("actors", "lent_actors", "lending", "attempts", "lease_s")

    actors: Annotated[int, BASIC, Meta(ge=1, description="rollout processes")] = 1
    lent_actors: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "of actors, the last so many have the trainer's devices: they decode while it waits"
            ),
        ),
    ] = 0
    lending: Annotated[
        Literal["priority", "switch"],
        Meta(
            description=(
                "of lent_actors: at a low priority on the trainer's cores, or given work only "
                "while the trainer has none, where that was worth it (servers, GPUs)"
            )
        ),
    ] = "priority"
    group_size: Annotated[int, BASIC, Meta(ge=1, description="rollouts of one prompt")] = 8
    k_min: Annotated[int, Meta(ge=1, description="verdicts a group needs to be trained")] = 2
    max_new_tokens: Annotated[
        int, BASIC, Meta(ge=1, description="tokens of a response, at most")
    ] = 32
    temperature: Annotated[
        float, BASIC, Meta(gt=0, description="of sampling; evaluation is greedy")
    ] = 1.0
    truncated: Annotated[
        Literal["keep", "mask", "penalize"],
        Meta(
            description=(
                "a response that is cut at its budget: trained as it is, left out of the loss, or "
                "the longer a response the less its reward (DAPO)"
            )
        ),
    ] = "keep"
    overlong_band: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "penalize: tokens before the budget over which the penalty grows to 1; 0: a fifth "
                "of max_new_tokens"
            ),
        ),
    ] = 0
    filter: Annotated[
        Literal["zero_variance", "none"],
        Meta(
            description=(
                "groups left out: those whose rewards are all equal (with reinforce_pp they have "
                "a signal, and stay), or none"
            )
        ),
    ] = "zero_variance"
    filter_patience: Annotated[
        int, Meta(ge=1, description="groups filtered in a row that end the run")
    ] = 512
    accept_floor: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="share of groups left by the filter that is too small to go on with",
        ),
    ] = 0.01
    sizing: Annotated[
        Literal["fixed", "difficulty"],
        Meta(description="rollouts of a prompt: group_size, or more where it is harder"),
    ] = "fixed"
    group_size_max: Annotated[
        int, Meta(ge=1, description="rollouts of the hardest prompt, where sizing is difficulty")
    ] = 16
    mode: Annotated[
        Literal["in_flight", "batch"],
        Meta(
            description=(
                "the rest, once a step has its groups: goes on, or is interrupted, kept, and "
                "leased again first"
            )
        ),
    ] = "in_flight"
    overprovision: Annotated[
        float, Meta(ge=1, description="groups started for each that a step needs")
    ] = 1.0
    max_resumes: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "times a rollout may be taken back and go on before it is given up; 0: any number"
            ),
        ),
    ] = 0
    lease_s: Annotated[
        float, Meta(gt=0, description="seconds a rollout may stay with one rollout actor, at most")
    ] = 600.0
    attempts: Annotated[
        int, Meta(ge=1, description="leases of a rollout before it is given up")
    ] = 3


class EvaluationConfig(Section, frozen=True):
    """Evaluation: each held-out prompt is answered greedily, and sampled if that is asked for."""

    weights: Annotated[
        Literal["current", "ema"],
        Meta(description="weights that are evaluated: a version's own, or the average (train.ema)"),
    ] = "current"
    samples: Annotated[
        int, Meta(ge=0, description="sampled answers to each held-out prompt; 0: greedy ones only")
    ] = 0
    temperature: Annotated[float, Meta(gt=0, description="of those answers")] = 1.0
    pass_at: Annotated[
        tuple[Count, ...],
        Meta(description="each k of pass@k: of k such answers one at least is right"),
    ] = ()
