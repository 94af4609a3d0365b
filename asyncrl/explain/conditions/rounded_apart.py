"""Weights that engines round and the trainer does not."""

from __future__ import annotations

from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts

GAP = 0.005
"""Nats a token that rounding may change. bfloat16 changes 0.001 to 0.002 of the bundled model, fp8
0.007 to 0.013."""


def _rounded_apart(facts: RunFacts, limit: float) -> list[Finding]:
    gap = facts.metrics.get("published_gap", 0.0)
    if gap <= limit:
        return []
    return [
        Finding(
            "rounded_apart",
            f"Engines round the weights, and the trainer does not: that alone changes "
            f"log-probabilities by {gap:.2g} nats a token, over its bound of {limit:g}; round both "
            "sides alike (model.rounding for fp8, model.dtype for bfloat16), or set "
            "publication.dtype = 'model'.",
        )
    ]


ROUNDED_APART = Condition(
    ("rounded_apart",),
    "what rounding by engines alone changes of log-probabilities (nats a token)",
    GAP,
    ("model.rounding", "model.dtype", "publication.dtype"),
    _rounded_apart,
)
