"""Settings of evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import Count, Section


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
