"""Settings of the model, and of its adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

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
        float, Meta(gt=0, description="an adapter's product is added alpha / rank times")
    ] = 32.0
    targets: Annotated[
        str | tuple[str, ...],
        Meta(
            description=(
                "linear layers with an adapter: all-linear (all but the output layer), or a list "
                'of last parts of names, such as ["q_proj", "v_proj"], also of tensors of experts'
            )
        ),
    ] = ALL_LINEAR

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
                f"{ALL_LINEAR} means every layer, so it cannot be beside others: set targets to it "
                "alone",
            )
        if whole.publication.path == "direct":
            yield (
                ("model.lora.rank", "publication.path"),
                "adapters are merged into whole weights beside the engine's own: set path to "
                "staged",
            )
        if whole.publication.rounds(whole.model):
            yield (
                ("model.lora.rank", "publication.dtype"),
                "adapters are sent in the model's type, like their base: set dtype to model",
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
        Meta(
            ge=0, description="bundled model: supervised steps on the task's own answers, at most"
        ),
    ] = 600
    warmup_accuracy: Annotated[
        float,
        BASIC,
        Meta(
            gt=0,
            le=1,
            description=(
                "bundled model: the warm-up ends at this share of right greedy answers, and a "
                "tenth of it of right sampled ones"
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
                "type in which the output layer of trainer and embedded engines computes: that of "
                "the weights, or float32"
            )
        ),
    ] = "weights"
    rounding: Annotated[
        Literal["none", "fp8"],
        Meta(
            description=(
                "coarser values for the weights of linear layers, in trainer and engines alike: "
                "fp8 in blocks of 128 by 128; float32 masters learn"
            )
        ),
    ] = "none"
    train_vision: Annotated[
        bool,
        Meta(
            description=(
                "train the tower for images, too, of a model that reads them; false: only the "
                "layers of text learn"
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
                "a block of weights may lie with two ranks: set rounding to none, or lower ranks "
                "to 1",
            )
