"""Idle shares of trainer and rollout actors, judged together: they say who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts

IDLE = 0.3
"""Share of idle time, 0 to 1, from which a side waits for the other. Below it both work."""

SlowSide = Literal["generation", "trainer", "neither"]
"""The side that the other one waits for; `neither` where each waits for the other."""


def slow_side(trainer: float | None, rollout: float | None, limit: float = IDLE) -> SlowSide | None:
    """The slow side, by the idle shares of both; None where both work, or too little is known.

    >>> slow_side(0.8, 0.1), slow_side(0.1, 0.8), slow_side(0.4, 0.5), slow_side(0.2, None)
    ('generation', 'trainer', 'neither', None)
    """
    if trainer is None or rollout is None:
        return None
    match trainer >= limit, rollout >= limit:
        case True, False:
            return "generation"
        case False, True:
            return "trainer"
        case True, True:
            return "neither"
    return None


def _idle(facts: RunFacts, limit: float) -> Iterator[Finding]:
    trainer, rollout = facts.idle_trainer, facts.idle_rollout
    match slow_side(trainer, rollout, limit):
        case "generation":
            yield Finding(
                "trainer_idle",
                f"The trainer was idle for {trainer:.0%} of its time, and rollout actors for "
                f"{rollout:.0%}: generation, or what judges it, is the slow side; raise "
                "rollout.actors, engine.slots or reward.actors, or lend it the trainer's devices "
                "(raise rollout.lent_actors).",
            )
        case "trainer":
            yield Finding(
                "engines_idle",
                f"Rollout actors were idle for {rollout:.0%} of their time, and the trainer for "
                f"{trainer:.0%}: the trainer is the slow side; raise machine.trainer_cores or "
                "train.ranks, and lower rollout.actors.",
            )
        case "neither":
            yield Finding(
                "both_idle",
                f"The trainer was idle for {trainer:.0%} of its time, and rollout actors for "
                f"{rollout:.0%}: each waits for the other; raise staleness.depth, so that "
                "generation runs further ahead.",
            )


IDLE_SIDES = Condition(
    names=("trainer_idle", "engines_idle", "both_idle"),
    measures="idle shares of trainer and rollout actors",
    bound=IDLE,
    settings=(
        "rollout.actors",
        "engine.slots",
        "reward.actors",
        "rollout.lent_actors",
        "machine.trainer_cores",
        "train.ranks",
        "staleness.depth",
    ),
    find=_idle,
)
