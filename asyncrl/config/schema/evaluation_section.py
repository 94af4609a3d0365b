"""Settings of evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.engines import capabilities
from asyncrl.config.schema.section import Contradictions, Count, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class EvaluationConfig(Section, frozen=True):
    """Evaluation: each held-out prompt is answered greedily, and by samples if set."""

    resumable = ("hold_s",)

    weights: Annotated[
        Literal["current", "ema"],
        Meta(description="weights that are evaluated: a version's own, or the average (train.ema)"),
    ] = "current"
    samples: Annotated[
        int,
        Meta(
            ge=0,
            le=2**16,
            description="sampled answers to each held-out prompt; 0: greedy ones only",
        ),
    ] = 0
    temperature: Annotated[float, Meta(gt=0, description="of those answers")] = 1.0
    pass_at: Annotated[
        tuple[Count, ...],
        Meta(description="each k of pass@k: at least one of k such answers is right"),
    ] = ()

    hold_s: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "seconds for which an evaluation may delay the next version, if engines keep "
                "only one; later answers are mixed"
            ),
        ),
    ] = 300.0

    def contradictions(self, whole: Config) -> Contradictions:
        if self.pass_at and max(self.pass_at) > self.samples:
            yield (
                ("evaluation.pass_at", "evaluation.samples"),
                "pass@k needs k different answers: raise samples, or lower each k to it",
            )
        if self.weights == "ema":
            yield from _of_the_average(whole)


def _of_the_average(whole: Config) -> Contradictions:
    """Yield contradictions of an evaluation of the average."""
    if not whole.train.ema:
        yield (
            ("evaluation.weights", "train.ema"),
            "there is no average to evaluate: set ema to its decay, as 0.99, or weights to current",
        )
    if not capabilities(whole.engine.kind).keeps_averages:
        yield (
            ("evaluation.weights", "engine.kind"),
            "this engine keeps no average beside the weights for training: set "
            "weights to current and evaluate model-ema apart, or set kind to embedded",
        )
    if whole.staleness.finish_on == "own":
        yield (
            ("evaluation.weights", "staleness.finish_on"),
            "engines keep each version's own weights for rollouts that end under it, in the slot "
            "of its average: set finish_on to mixed, or weights to current",
        )
