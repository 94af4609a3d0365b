"""Settings of agents, which play rollouts of many turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from asyncrl.config.schema.other_models import other_models
from asyncrl.config.schema.section import CODE, PATH, Contradictions, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config

PLAYED_ELSEWHERE = "http"
"""`agent.run` where programs elsewhere play."""


PLAYED_BY_HOST = "guest"
"""`agent.run` where another run's agents play, in a game."""


class AgentConfig(Section, frozen=True):
    """Agents that play a prompt's rollouts as episodes of many turns (docs/agents.md)."""

    resumable = (
        "actors",
        "concurrency",
        "episode_s",
        "call_s",
        "max_calls",
        "attempts",
        "sandbox",
        "paths",
        "mask_failed",
        "history",
        "strict_parameters",
        "port",
        "models",
        "end",
    )

    run: Annotated[
        str | tuple[str, ...],
        CODE,
        Meta(
            description=(
                "the agent: `module:name`, `./file.py:name`, a program and its arguments, or "
                "`http` for programs that fetch episodes (`guest`: those of a game's host); empty: "
                "none, a rollout is one turn"
            )
        ),
    ] = ""
    actors: Annotated[int, Meta(ge=1, description="agents processes")] = 1
    concurrency: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description=(
                "episodes at a time, at each agents actor; fewer where engines are busy, or a "
                "program starts slowly"
            ),
        ),
    ] = 64
    episode_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds that an agent may work, without the time of its calls",
        ),
    ] = 300.0
    call_s: Annotated[float, Meta(gt=0, description="seconds of one call")] = 600.0
    max_calls: Annotated[int, Meta(ge=1, description="calls of an attempt, at most")] = 32
    attempts: Annotated[
        int, Meta(ge=1, description="failed attempts after which an episode is dropped")
    ] = 3
    sandbox: Annotated[
        Literal["none", "bwrap"],
        Meta(
            description=(
                "for a program of `run`, and for programs that tools start by "
                "asyncrl.sandbox.programs: bwrap, it reaches the model but cannot set rewards; "
                "none, it is this user's process"
            )
        ),
    ] = "none"
    paths: Annotated[
        tuple[str, ...],
        PATH,
        Meta(
            description=(
                "files and folders that a program of `run` sees in the sandbox, besides the system "
                "and those in its command"
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
                "earlier replies of a chat in the next call: as the chat template renders them, or "
                "as the tokens that were sampled"
            )
        ),
    ] = "template"
    strict_parameters: Annotated[
        bool,
        Meta(
            description=(
                "refuse calls with parameters that have no effect, such as top_p, or another "
                "model's name, in place of naming them in a header and the log"
            )
        ),
    ] = False
    port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description=(
                "port on loopback of the first agents actor's API; the next actor has the next "
                "port; 0: any"
            ),
        ),
    ] = 0
    models: Annotated[
        dict[str, Any],
        Meta(
            description=(
                "models that are not trained, by the name that agents call: for each a table with "
                "url, and model, api_key_env, api_key_file, timeout_s, concurrency"
            )
        ),
    ] = {}

    def __post_init__(self) -> None:
        """Raises ConfigError, which does not quote what may be a secret."""
        super().__post_init__()
        other_models(self.models)

    end: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "command, with its arguments, that ends what an agent opened with the kind "
                "`command`; the name is appended"
            )
        ),
    ] = ()

    def contradictions(self, whole: Config) -> Contradictions:
        if not self.run:
            if self.models:
                yield (
                    ("agent.models", "agent.run"),
                    "other models are for agents to call: set agent.run, or remove agent.models",
                )
            return
        if self.port and self.port + self.actors > 2**16:
            yield (
                ("agent.port", "agent.actors"),
                "each agents actor has a port of its own, and there are too few above this one: "
                "lower port",
            )
        if self.sandbox != "none" and self.run in (PLAYED_ELSEWHERE, PLAYED_BY_HOST):
            yield (
                ("agent.run", "agent.sandbox"),
                "the run does not start programs elsewhere, so it cannot sandbox them: set sandbox "
                "to none",
            )
        if self.paths and (self.sandbox == "none" or isinstance(self.run, str)):
            yield (
                ("agent.paths", "agent.sandbox"),
                "paths are files that a program of agent.run sees in the sandbox, but there is "
                "none: "
                "remove paths, or set sandbox to bwrap and run to a command",
            )
        if whole.rollout.truncated == "penalize":
            yield (
                ("agent.run", "rollout.truncated"),
                "the band applies to one response, but an agent's rollout has many: set truncated "
                "to "
                "keep or mask",
            )
        if whole.staleness.finish_on == "own":
            yield (
                ("agent.run", "staleness.finish_on"),
                "an episode outlives many versions, but engines do not keep them all: set "
                "finish_on to mixed",
            )
