"""A rank of the trainer that takes longer than the others for the same work."""

from __future__ import annotations

from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts

TIMES = 1.5
"""Times as long that a slow rank takes for the same work, at least: one that was given more comes
last, too."""


def _slow_rank(facts: RunFacts, limit: float) -> list[Finding]:
    last = facts.last_rank
    if last is None or last.waited <= limit or last.times < TIMES:
        return []
    return [
        Finding(
            "slow_rank",
            f"Rank {last.rank} of the trainer, on machine {last.machine}, takes {last.times:.1f} "
            f"times as long as the others for the same work, and they wait for it for "
            f"{last.waited:.0%} of a step: look at its device and at what else runs there, or "
            "lower train.ranks to train without it.",
        )
    ]


SLOW_RANK = Condition(
    ("slow_rank",),
    f"share of a step that the trainer's other ranks wait for one that takes {TIMES:g} times as "
    "long for the same work",
    0.2,
    ("train.ranks",),
    _slow_rank,
)
