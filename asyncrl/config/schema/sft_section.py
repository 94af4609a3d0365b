"""Settings of supervised fine-tuning."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import Section

LossOn = Literal["assistant", "last", "all"]
"""Values of `sft.loss_on`."""
TooLong = Literal["drop", "cut"]
"""Values of `sft.too_long`."""


class SftConfig(Section, frozen=True):
    """Supervised fine-tuning, `asyncrl sft` (docs/sft.md)."""

    run: Annotated[
        bool, Meta(description="train on the data's own answers; `asyncrl sft` sets it")
    ] = False
    loss_on: Annotated[
        LossOn,
        Meta(
            description=(
                "tokens of a conversation that are in the loss: all answers of the assistant, "
                "the last one, or all tokens"
            )
        ),
    ] = "assistant"
    too_long: Annotated[
        TooLong,
        Meta(
            description=(
                "rows longer than engine.context_tokens: drop them, or cut them and train on "
                "their beginning"
            )
        ),
    ] = "drop"
