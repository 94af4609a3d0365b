"""Settings of evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.engines import capabilities
from asyncrl.config.schema.section import Contradictions, Count, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class EvaluationConfig(Section, frozen=True):
    """Evaluation: each held-out prompt gets a greedy answer, and sampled answers if set."""

    resumable = ("hold_s",)

    weights: Annotated[
        Literal["current", "ema"],
        Meta(description="weights to evaluate: the version's own, or the average (train.ema)"),
    ] = "current"
    samples: Annotated[
        int,
        Meta(
            ge=0,
            le=2**16,
            description="sampled answers per held-out prompt; 0: greedy answers only",
        ),
    ] = 0
    temperature: Annotated[
        float, Meta(gt=0, description="sampling temperature of those answers")
    ] = 1.0
    pass_at: Annotated[
        tuple[Count, ...],
        Meta(
            description=(
                "values of k for pass@k, the chance that at least one of k sampled answers is right"
            )
        ),
    ] = ()

    hold_s: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "most seconds that the evaluation of a version delays the next version, where "
                "engines keep only one; the rest is then answered by mixed versions"
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
            "there is no average to evaluate: set ema to its decay, such as 0.99, or weights "
            "to current",
        )
    if not capabilities(whole.engine.kind).keeps_averages:
        yield (
            ("evaluation.weights", "engine.kind"),
            "this engine cannot hold the average beside the training weights: set weights to "
            "current and evaluate model-ema separately, or set kind to embedded",
        )
    if whole.staleness.finish_on == "own":
        yield (
            ("evaluation.weights", "staleness.finish_on"),
            "with finish_on = own, engines keep each version's weights where its average would "
            "be: set finish_on to mixed, or weights to current",
        )
