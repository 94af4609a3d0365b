"""Settings of the reference policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.policy_section import PolicyConfig
from asyncrl.config.schema.section import PATH, Contradictions

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class ReferenceConfig(PolicyConfig, frozen=True):
    """The reference policy, which the learning policy stays close to (docs/policies.md)."""

    coefficient: Annotated[
        float,
        Meta(ge=0, description=("weight of the divergence from the reference; 0: no reference")),
    ] = 0.0
    path: Annotated[
        str,
        PATH,
        Meta(
            description=(
                "model directory of the reference; empty: the model that the run starts from"
            )
        ),
    ] = ""
    kl_in: Annotated[
        Literal["loss", "reward", "advantage"],
        Meta(
            description=(
                "where the divergence counts: added to each token's loss, its sum subtracted "
                "from the rollout's reward, or subtracted from each token's advantage"
            )
        ),
    ] = "loss"
    estimator: Annotated[
        Literal["k1", "k2", "k3"],
        Meta(
            description=(
                "estimator of the divergence: in a loss k2 has its gradient, k3 (GRPO's) that of "
                "the reverse direction; elsewhere k1 has its gradient"
            )
        ),
    ] = "k2"
    reset_every: Annotated[
        int,
        Meta(
            ge=0,
            description=("steps between resets of the reference to the current policy; 0: never"),
        ),
    ] = 0

    def contradictions(self, whole: Config) -> Contradictions:
        yield from super().contradictions(whole)
        if self.reset_every and (self.path or self.server):
            yield (
                ("reference.reset_every", "reference.path", "reference.server"),
                "a reference that is reset to the current policy starts as the run's model: "
                "remove path and server, or set reset_every to 0",
            )
