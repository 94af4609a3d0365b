"""Settings of supervision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from asyncrl.config.schema.section import EVERY, Contradictions, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class SupervisionConfig(Section, frozen=True):
    """Supervision of actors: how long the run waits for them, and how often it restarts them."""

    resumable = EVERY

    restarts: Annotated[
        int, Meta(ge=0, description="restarts of a rollout or reward actor within restart_window_s")
    ] = 5
    restart_window_s: Annotated[
        float, Meta(gt=0, description="seconds over which restarts are counted")
    ] = 300.0
    heals: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "times in a row, without a new step, that a run resumes by itself after the loss "
                "of its trainer or coordinator; 0: it ends"
            ),
        ),
    ] = 3
    start_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds within which actors must connect; one rollout actor is enough",
        ),
    ] = 300.0
    stall_s: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "seconds without a token or a step that end the run, unless the trainer is at work"
            ),
        ),
    ] = 300.0
    compute_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds that the trainer may take for a micro-batch or an optimizer step",
        ),
    ] = 900.0
    checkpoint_s: Annotated[
        float, Meta(gt=0, description="seconds that the trainer may take for a checkpoint")
    ] = 1800.0
    grace_s: Annotated[float, Meta(gt=0, description="seconds to drain at a stop")] = 5.0
    keep_servers_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description=(
                "seconds that a server outlives the rollout actor that started it, for its next "
                "actor; 0: it ends with its actor"
            ),
        ),
    ] = 60.0

    def contradictions(self, whole: Config) -> Contradictions:
        if self.stall_s <= whole.task.verdict_s:
            yield (
                ("supervision.stall_s", "task.verdict_s"),
                "a slow verifier would look like a stalled run: stall_s must be larger than "
                "verdict_s",
            )
