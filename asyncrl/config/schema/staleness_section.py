"""Settings of staleness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.engines import keeps_versions
from asyncrl.config.schema.section import BASIC, EVERY, Contradictions, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config
from asyncrl.staleness.corrections import Correction, IcePop


class StalenessConfig(Section, frozen=True):
    """Age of experience: its bound, and the handling of old tokens."""

    resumable = EVERY

    max_lag: Annotated[
        int,
        BASIC,
        Meta(ge=0, description=("largest lag in versions; no older token enters a loss")),
    ] = 4
    depth: Annotated[
        int, BASIC, Meta(ge=0, description="steps that generation may run ahead of training")
    ] = 1
    window: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "how many groups, counted from the oldest unfinished one, may be trained out "
                "of order; 0: any, the oldest finished first"
            ),
        ),
    ] = 0
    finish_on: Annotated[
        Literal["mixed", "own"],
        Meta(
            description=(
                "a rollout may continue under a newer version (mixed), or ends under the one "
                "that it began with (own)"
            )
        ),
    ] = "mixed"
    proximal: Annotated[
        Literal["behaviour", "boundary", "snapshot", "recompute", "loglinear", "ema"],
        Meta(description="the proximal policy, around which the ratio is clipped"),
    ] = "behaviour"
    on_stale: Annotated[
        Literal["mask", "restart", "drop", "train"],
        Meta(
            description=(
                "tokens over max_lag: mask them from the loss, restart their prompt, drop "
                "their group, or train them"
            )
        ),
    ] = "mask"
    correction: Annotated[
        tuple[Correction, ...],
        BASIC,
        Meta(
            description=(
                "off-policy corrections, which mask or weight tokens, applied in this order"
            )
        ),
    ] = (IcePop(),)

    def contradictions(self, whole: Config) -> Contradictions:
        if self.proximal == "ema" and not whole.train.ema:
            yield (
                ("staleness.proximal", "train.ema"),
                "there is no average of the weights: set ema to its decay, such as 0.9",
            )
        keeps = keeps_versions(whole.engine.kind, adapters=whole.model.lora.alone)
        if self.finish_on == "own" and not keeps:
            yield (
                ("staleness.finish_on", "engine.kind"),
                "this engine holds only one version, so a rollout cannot finish under an older "
                "one: set finish_on to mixed, or kind to embedded, or train adapters that servers "
                "hold beside one base (model.lora.served)",
            )
