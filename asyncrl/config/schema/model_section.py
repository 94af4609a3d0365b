"""Settings of the model and its adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.engines import capabilities
from asyncrl.config.schema.section import BASIC, PATH, Contradictions, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config

ALL_LINEAR = "all-linear"
"""The value of `model.lora.targets` for every linear layer except the output layer."""


class LoraConfig(Section, frozen=True):
    """Adapters that learn in place of the model's weights (docs/lora.md)."""

    rank: Annotated[
        int, Meta(ge=0, description="rank of each adapter; 0: no adapters, all weights learn")
    ] = 0
    alpha: Annotated[
        float, Meta(gt=0, description="an adapter's product is scaled by alpha / rank")
    ] = 32.0
    targets: Annotated[
        str | tuple[str, ...],
        Meta(
            description=(
                "linear layers that get an adapter: all-linear, all except the output layer; "
                'or a list of last parts of their names, such as ["q_proj", "v_proj"], which '
                "may name tensors of experts"
            )
        ),
    ] = ALL_LINEAR

    served: Annotated[
        Literal["merged", "adapters"],
        Meta(
            description=(
                "what engines decode with: merged, whole weights that are made of base and "
                "adapters; or adapters, beside one base that a server keeps"
            )
        ),
    ] = "merged"

    @property
    def alone(self) -> bool:
        """True if engines get adapters alone."""
        return self.rank > 0 and self.served == "adapters"

    @property
    def named_targets(self) -> tuple[str, ...]:
        """The last parts of names in `targets`; none where it means all layers."""
        if isinstance(self.targets, str):
            return () if self.targets == ALL_LINEAR else (self.targets,)
        return self.targets

    def contradictions(self, whole: Config) -> Contradictions:
        if not self.rank:
            return
        if self.targets != ALL_LINEAR and not all(self.named_targets or [""]):
            yield (
                ("model.lora.rank", "model.lora.targets"),
                f"no layer would have an adapter: name layers, or set targets to {ALL_LINEAR}",
            )
        if ALL_LINEAR in self.named_targets:
            yield (
                ("model.lora.targets",),
                f"{ALL_LINEAR} already means every layer: set targets to it alone",
            )
        if whole.publication.path == "direct":
            yield (
                ("model.lora.rank", "publication.path"),
                "adapters are merged in memory beside the engine's weights: set path to staged",
            )
        if self.alone:
            yield from self._alone(whole)
        if whole.publication.rounds(whole.model):
            yield (
                ("model.lora.rank", "publication.dtype"),
                "adapters are sent in the model's type, like their base: set dtype to model",
            )

    def _alone(self, whole: Config) -> Contradictions:
        """Yield what contradicts engines that get adapters alone."""
        engine = whole.engine
        if not capabilities(engine.kind).serves_adapters:
            yield (
                ("model.lora.served", "engine.kind"),
                f"an engine of the kind {engine.kind} decodes with whole weights: set served to "
                "merged, or kind to sglang or vllm",
            )
        if engine.servers is not None and engine.servers.router:
            yield (
                ("model.lora.served", "engine.sglang.router"),
                "a router knows nothing of adapters: set served to merged, or remove the router",
            )
        if whole.train.router_replay:
            yield (
                ("model.lora.served", "train.router_replay"),
                "with adapters no server was seen to return the experts of tokens: set served to "
                "merged, or router_replay to false",
            )


class ModelConfig(Section, frozen=True):
    """The model that learns."""

    path: Annotated[
        str,
        PATH,
        BASIC,
        Meta(
            description=(
                "a local Hugging Face model directory, or the name of a model on a hub (org/name, "
                "or org/name@revision); empty: the bundled small model"
            )
        ),
    ] = ""
    warmup_steps: Annotated[
        int,
        Meta(ge=0, description="bundled model: most supervised steps on the task's own answers"),
    ] = 600
    warmup_accuracy: Annotated[
        float,
        BASIC,
        Meta(
            gt=0,
            le=1,
            description=(
                "bundled model: the warm-up ends once this share of greedy answers is right, "
                "and a tenth of it of sampled ones"
            ),
        ),
    ] = 0.3
    dtype: Annotated[Literal["float32", "bfloat16"], BASIC, Meta(description="of the weights")] = (
        "float32"
    )
    output_dtype: Annotated[
        Literal["weights", "float32"],
        Meta(
            description=(
                "type in which trainer and embedded engines compute the output layer: that of "
                "the weights, or float32"
            )
        ),
    ] = "weights"
    rounding: Annotated[
        Literal["none", "fp8"],
        Meta(
            description=(
                "round the weights of linear layers, in trainer and engines alike: fp8, in "
                "blocks of 128 by 128, while float32 master weights learn"
            )
        ),
    ] = "none"
    train_vision: Annotated[
        bool,
        Meta(
            description=(
                "for a model that reads images, also train its vision tower; false: only the "
                "text layers learn"
            )
        ),
    ] = False
    lora: LoraConfig = LoraConfig()

    def contradictions(self, whole: Config) -> Contradictions:
        if self.rounding == "none":
            return
        if self.lora.rank:
            yield (
                ("model.rounding", "model.lora.rank"),
                "a base with adapters is not rounded: set rounding to none, or rank to 0",
            )
        if whole.train.ranks > 1 or whole.cluster.trainer_agents:
            yield (
                ("model.rounding", "train.ranks"),
                "two ranks may share a block of weights: set rounding to none, or lower ranks to 1",
            )
