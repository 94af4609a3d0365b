"""Kernels that a device has and the trainer does not use."""

from __future__ import annotations

from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts


def _slow_attention(facts: RunFacts, limit: float) -> list[Finding]:
    if facts.metrics.get("attention_by_tables", 0.0) <= limit:
        return []
    return [
        Finding(
            "slow_attention",
            "The trainer computes attention on its GPU by tables, because blocks failed (its log "
            "says why): that is slower. Install a C compiler and mount the temporary directory "
            'with exec; train.attention = "blocks" refuses it.',
        )
    ]


SLOW_ATTENTION = Condition(
    ("slow_attention",),
    "1 where the trainer computes attention on a GPU by tables, because blocks failed",
    0.0,
    ("train.attention",),
    _slow_attention,
)
