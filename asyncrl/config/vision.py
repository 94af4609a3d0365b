"""Settings that a run with images in its prompts cannot have yet. Pure: `check` asks once it has
seen that the data has images."""

from __future__ import annotations

from asyncrl.config.engines import capabilities
from asyncrl.config.schema import Config


def unseen(config: Config) -> str:
    """The reason why images are not read with these settings, and what to set; empty if they are.

    >>> unseen(Config())
    ''
    """
    engine = config.engine
    reasons = (
        (
            not capabilities(engine.kind).sees_images,
            f"by no engine of the kind {engine.kind}: set engine.kind to embedded",
        ),
        (
            capabilities(engine.kind).serves_apart and config.model.lora.alone,
            "by servers that get whole weights: set model.lora.served to merged",
        ),
        (
            capabilities(engine.kind).serves_apart and config.model.train_vision,
            "by servers whose tower does not learn, as they keep what it saw: set "
            "model.train_vision to false",
        ),
        (engine.compile, "by uncompiled engines alone: set engine.compile to false"),
        (
            config.cluster.trainer_agents > 0,
            "by ranks of one machine alone: set cluster.trainer_agents to 0",
        ),
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

    >>> untrained(Config())
    ''
    """
    if config.model.train_vision and config.model.lora.rank:
        return (
            "images are read by a tower that adapters leave as it is: set model.train_vision to "
            "false"
        )
    return ""
