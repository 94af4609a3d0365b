"""Sentences that say what to change in a run's next life, from its numbers alone. Invariant: each
names the number that it follows from, and a setting.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.explain.views.run_figures import RunFigures

IDLE = 0.3
"""Share of idle time, 0 to 1, from which a side waits for the other."""
FILTERED = 0.5
"""Share of the generated tokens that groups of equal rewards may have."""
STALE = 0.05
"""Share of the generated tokens that may be too old."""
CUT = 0.2
"""Share of the last step's responses that may be cut at their budget."""


def next_changes(figures: RunFigures, cut: float | None = None) -> Iterator[str]:
    """Sentences about one run, of whose last responses the share `cut` was cut at its budget; none
    where its numbers suggest no change."""
    trainer, rollout = figures.idle_trainer, figures.idle_rollout
    if trainer is not None and rollout is not None:
        if trainer >= IDLE > rollout:
            yield (
                f"The trainer was idle for {trainer:.0%} of its time, and rollout actors for "
                f"{rollout:.0%}: generation, or what judges it, is the slow side. It needs more "
                "of the machine: rollout.actors, rollout.lent_actors (on the trainer's devices), "
                "engine.slots, reward.actors."
            )
        if rollout >= IDLE > trainer:
            yield (
                f"Rollout actors were idle for {rollout:.0%} of their time, and the trainer for "
                f"{trainer:.0%}: the trainer is the slow side. It needs more of the machine "
                "(machine.trainer_cores, train.ranks), or generation less."
            )
        if trainer >= IDLE <= rollout:
            yield (
                f"Both sides were idle (trainer {trainer:.0%}, rollout actors {rollout:.0%}), so "
                "each waits for the other: a larger staleness.depth lets generation run further "
                "ahead."
            )
    if (share := _share(figures, "zero_variance")) >= FILTERED:
        yield (
            f"{share:.0%} of the generated tokens were of groups whose rewards are all equal, from "
            "which nothing is learned: choose prompts of another difficulty (task.params, "
            "task.curriculum), or a larger rollout.group_size."
        )
    if (share := _share(figures, "stale")) >= STALE:
        yield (
            f"{share:.0%} of the generated tokens were too old to be trained: lower "
            "staleness.depth, or raise staleness.max_lag."
        )
    if cut is not None and cut >= CUT:
        yield (
            f"{cut:.0%} of the last step's responses were cut at their budget: raise "
            "rollout.max_new_tokens, or see rollout.truncated."
        )


def _share(figures: RunFigures, reason: str) -> float:
    tokens = figures.tokens
    return tokens.discarded.get(reason, 0) / tokens.generated if tokens.generated else 0.0
