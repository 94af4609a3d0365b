"""Settings of the model, and of its adapters."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import BASIC, Section


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
    ] = "all-linear"


class ModelConfig(Section, frozen=True):
    """The model that learns."""

    path: Annotated[
        str,
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
