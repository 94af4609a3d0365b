"""Use of the experts of a mixture. The trainer measures it where a step has tokens enough
to tell."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts

USE = 0.1
"""Use of the experts of a layer, from 0 (the same for all tokens) to 1 (all equally)."""


def _unused(facts: RunFacts, limit: float) -> Iterator[Finding]:
    use = facts.metrics.get("expert_use", 1.0)
    if use < limit:
        largest = facts.metrics.get("expert_max_load", 0.0)
        yield Finding(
            "experts_unused",
            f"A layer of the model sends almost all tokens to the same experts: their use is "
            f"{use:.2g} of 1, below its bound of {limit:g}, and the busiest expert has "
            f"{largest:.3g} times the mean load; set train.router_aux (0.001), or "
            "train.router_bias_rate (0.001) where routers have a bias, or lower train.lr.",
        )


EXPERTS = Condition(
    names=("experts_unused",),
    measures="use of the experts of the layer that uses them least (0 to 1)",
    bound=USE,
    settings=("train.router_aux", "train.router_bias_rate", "train.lr"),
    find=_unused,
)
