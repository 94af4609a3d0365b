"""Settings of the model, and of its adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import BASIC, PATH, Contradictions, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config

ALL_LINEAR = "all-linear"
"""The value of `model.lora.targets` that stands for every linear layer but the output layer."""


class LoraConfig(Section, frozen=True):
    """Adapters that learn in place of the model's weights (docs/lora.md)."""

    rank: Annotated[
        int, Meta(ge=0, description="of each adapter; 0: there are none, and all weights learn")
    ] = 0
    alpha: Annotated[
        float, Meta(gt=0, description="an adapter's product is added alpha / rank times")
    ] = 32.0
    targets: Annotated[
        str | tuple[str, ...],
        Meta(
            description=(
                "linear layers that have one: all-linear, every one but the output layer, or a "
                'list of last parts of their names, as ["q_proj", "v_proj"]'
            )
        ),
    ] = ALL_LINEAR

    @property
    def named_targets(self) -> tuple[str, ...]:
        """The last parts of names that `targets` lists; none where it stands for all layers."""
        if isinstance(self.targets, str):
            return () if self.targets == ALL_LINEAR else (self.targets,)
        return self.targets

    def contradictions(self, whole: Config) -> Contradictions:
        if not self.rank:
            return
        if self.targets != ALL_LINEAR and not all(self.named_targets or [""]):
            yield (
                ("model.lora.rank", "model.lora.targets"),
                f"no layer has an adapter by that: name layers, or set targets to {ALL_LINEAR}",
            )
        if ALL_LINEAR in self.named_targets:
            yield (
                ("model.lora.targets",),
                f"{ALL_LINEAR} stands for every layer, and not beside others: set targets to it "
                "alone",
            )
        if whole.train.ranks > 1:
            yield (
                ("model.lora.rank", "train.ranks"),
                "several ranks divide weights that learn, and have no adapters yet: set rank to 0, "
                "or lower ranks to 1",
            )
        if whole.publication.path == "direct":
            yield (
                ("model.lora.rank", "publication.path"),
                "whole weights are made of adapters beside the engine's own: set path to staged",
            )
        if whole.publication.rounds(whole.model):
            yield (
                ("model.lora.rank", "publication.dtype"),
                "adapters are sent as they are, and their base is the model's own: set dtype to "
                "model",
            )


class ModelConfig(Section, frozen=True):
    """The model that learns."""

    path: Annotated[
        str,
        PATH,
        BASIC,
        Meta(description="a local Hugging Face model directory; empty: the bundled small model"),
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
                "bundled model: share of right greedy answers, and ten times that of sampled "
                "ones, that ends the warm-up"
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
                "type that the output layer computes in, of trainer and embedded engines: that of "
                "the weights, or float32"
            )
        ),
    ] = "weights"
    lora: LoraConfig = LoraConfig()
