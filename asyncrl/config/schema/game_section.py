"""Settings of a run that is one policy of a game. `asyncrl train game.toml` writes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from asyncrl.config.schema.agent_section import PLAYED_BY_HOST, PLAYED_ELSEWHERE
from asyncrl.config.schema.section import Contradictions, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
"""A policy's name: it is a folder's, a model's and a reward's."""


class GameConfig(Section, frozen=True):
    """A policy of a game (docs/policies.md); `asyncrl train game.toml` writes this table."""

    policy: Annotated[str, Meta(description="the policy's name; empty: no game")] = ""
    guests: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "the other policies, whose runs are beside this one; empty: another run's agents "
                "play the game"
            )
        ),
    ] = ()

    def contradictions(self, whole: Config) -> Contradictions:
        agent, task = whole.agent, whole.task
        if bool(self.policy and not self.guests) != (agent.run == PLAYED_BY_HOST):
            yield (
                ("game.policy", "agent.run"),
                "a run is another's guest by `asyncrl train game.toml`: start it so",
            )
        if not self.policy:
            return
        if not agent.run:
            yield ("game.policy", "agent.run"), "an agent plays a game: name it as game.run"
        if not isinstance(agent.run, str) or agent.run == PLAYED_ELSEWHERE:
            yield ("game.policy", "agent.run"), "a game is a function: name one, as ./game.py:play"
        for name in (self.policy, *self.guests):
            if not NAME.fullmatch(name):
                yield (
                    ("game.policy", "game.guests"),
                    "a policy's name is 1 to 32 letters, digits, - and _: rename it",
                )
        if not self.guests and agent.actors > 1:
            yield ("game.policy", "agent.actors"), "a guest needs one agents actor: set actors to 1"
        if task.eval_size or task.eval_path:
            yield (
                ("game.policy", "task.eval_size"),
                "games of held-out prompts are not played: set eval_size to 0",
            )
        if whole.staleness.on_stale == "restart":
            yield (
                ("game.policy", "staleness.on_stale"),
                "a game that begins again in one run would not in the others: set on_stale to "
                "mask or drop",
            )
        if task.curriculum != "in_order":
            yield (
                ("game.policy", "task.curriculum"),
                "the runs of a game have one order of prompts: set curriculum to in_order",
            )
        if whole.rollout.sizing != "fixed":
            yield (
                ("game.policy", "rollout.sizing"),
                "the groups of a game have one size: set sizing to fixed",
            )
        if agent.models:
            yield (
                ("game.policy", "agent.models"),
                "the other models of a game are its policies: remove agent.models",
            )
