"""Settings that a run with images in its prompts cannot have yet. Pure: `check` asks once it has
seen that the data has images."""

from __future__ import annotations

from asyncrl.config.cluster import joined
from asyncrl.config.schema import Config


def unseen(config: Config) -> str:
    """The reason why images are not read with these settings, and what to set; empty if they are.

    >>> unseen(Config())
    ''
    """
    engine = config.engine
    reasons = (
        (engine.kind != "embedded", "by embedded engines alone: set engine.kind to embedded"),
        (engine.compile, "by uncompiled engines alone: set engine.compile to false"),
        (joined(config), "on one machine alone: take the other machines of cluster out"),
        (
            config.reference.server or config.teacher.server,
            "by policies in the trainer: set reference.path or teacher.path, and no server",
        ),
    )
    engines = next((f"images are read {why}" for holds, why in reasons if holds), "")
    return engines or untrained(config)


def untrained(config: Config) -> str:
    """The reason why a trainer does not read images with these settings, and what to set; empty if
    it does.

    >>> untrained(Config(model={"dtype": "bfloat16"}))
    'images are read in float32 alone: set model.dtype to float32'
    """
    model = config.model
    reasons = (
        (model.rounding != "none", "without rounding: set model.rounding to none"),
        (model.dtype != "float32", "in float32 alone: set model.dtype to float32"),
        (
            model.train_vision and model.lora.rank,
            "by a tower that adapters leave as it is: set model.train_vision to false",
        ),
    )
    return next((f"images are read {why}" for holds, why in reasons if holds), "")
