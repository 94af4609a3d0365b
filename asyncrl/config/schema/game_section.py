"""Settings of a run that is one policy of a game. `asyncrl train game.toml` writes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from asyncrl.config.schema.agent_section import PLAYED_BY_HOST, PLAYED_ELSEWHERE
from asyncrl.config.schema.section import Contradictions, Section
from asyncrl.config.selection_names import LEAGUES

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
"""A policy's name, which also names a folder, a model and a reward."""


class GameConfig(Section, frozen=True):
    """A policy of a game (docs/policies.md); `asyncrl train game.toml` writes this table."""

    policy: Annotated[
        str, Meta(description=("the policy's name; empty: the run belongs to no game"))
    ] = ""
    guests: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "the other policies, trained by runs beside this one; empty: another run's "
                "agents play the game"
            )
        ),
    ] = ()
    past: Annotated[
        tuple[str, ...], Meta(description="those of guests that are frozen, and never trained")
    ] = ()
    frozen: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "makes this policy a frozen one, played by past versions of the policy named "
                "here, or by these model directories; empty: it is trained"
            )
        ),
    ] = ()
    draw: Annotated[
        str,
        LEAGUES.named,
        Meta(description="rule that draws the version that plays a frozen policy's next group"),
    ] = "uniform"
    versions: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description=(
                "past versions that a frozen policy keeps; of more, those closest to others go"
            ),
        ),
    ] = 8

    def contradictions(self, whole: Config) -> Contradictions:
        agent, task = whole.agent, whole.task
        if bool(self.policy and not self.guests) != (agent.run == PLAYED_BY_HOST):
            yield (
                ("game.policy", "agent.run"),
                "a guest run is started by `asyncrl train game.toml`: start it that way",
            )
        if not self.policy:
            return
        if not agent.run:
            yield (
                ("game.policy", "agent.run"),
                "a game needs an agent that plays it: name it as game.run",
            )
        if not isinstance(agent.run, str) or agent.run == PLAYED_ELSEWHERE:
            yield (
                ("game.policy", "agent.run"),
                "a game is a function: name one, such as ./game.py:play",
            )
        for name in (self.policy, *self.guests):
            if not NAME.fullmatch(name):
                yield (
                    ("game.policy", "game.guests"),
                    "a policy's name is 1 to 32 letters, digits, - and _: rename it",
                )
        if not self.guests and agent.actors > 1:
            yield ("game.policy", "agent.actors"), "a guest needs one agents actor: set actors to 1"
        if self.frozen and whole.engine.kind != "embedded":
            yield (
                ("game.frozen", "engine.kind"),
                "past versions are held by the embedded engine: set kind to embedded for the "
                "frozen policy",
            )
        if len(self.frozen) > self.versions:
            yield (
                ("game.frozen", "game.versions"),
                "not all of these versions would be held: raise versions",
            )
        if task.eval_size or task.eval_path:
            yield (
                ("game.policy", "task.eval_size"),
                "a game is not played on held-out prompts: set eval_size to 0",
            )
        if whole.staleness.on_stale == "restart":
            yield (
                ("game.policy", "staleness.on_stale"),
                "a game that restarts in one run would not restart in the others: set on_stale "
                "to mask or drop",
            )
        if task.curriculum != "in_order":
            yield (
                ("game.policy", "task.curriculum"),
                "all runs of a game need the same order of prompts: set curriculum to in_order",
            )
        if whole.rollout.sizing != "fixed":
            yield (
                ("game.policy", "rollout.sizing"),
                "all groups of a game have one size: set sizing to fixed",
            )
        if agent.models:
            yield (
                ("game.policy", "agent.models"),
                "the other models of a game are its policies: remove agent.models",
            )
