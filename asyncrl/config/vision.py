"""Settings that a run with images in its prompts cannot have yet. Pure: `check` asks once it has
seen that the data has images."""

from __future__ import annotations

from asyncrl.config.cluster import joined
from asyncrl.config.ranks import ranks_of
from asyncrl.config.schema import Config


def unseen_of_agents(config: Config) -> str:
    """The reason why images that agents show are not read with these settings, as `unseen`.

    >>> unseen_of_agents(Config())
    ''
    """
    if config.engine.kind != "embedded":
        return "images are read by embedded engines alone: set engine.kind to embedded"
    return unseen(config)


def unseen(config: Config) -> str:
    """The reason why images are not read with these settings, and what to set; empty if they are.

    >>> unseen(Config())
    ''
    """
    engine, train, model = config.engine, config.train, config.model
    reasons = (
        (engine.kind != "embedded", "by embedded engines alone: set engine.kind to embedded"),
        (engine.compile, "by uncompiled engines alone: set engine.compile to false"),
        (config.sft.run, "in rollouts and not in supervised runs: take sft.run out"),
        (ranks_of(train) > 1, "by a trainer of one rank: set train.ranks to 1"),
        (train.device != "cpu", "on processors alone: set train.device to cpu"),
        (joined(config), "on one machine alone: take the other machines of cluster out"),
        ("://" in config.run.copy, "without a copy in a store: set run.copy to a folder"),
        (model.lora.rank, "without adapters: set model.lora.rank to 0"),
        (model.rounding != "none", "without rounding: set model.rounding to none"),
        (model.dtype != "float32", "in float32 alone: set model.dtype to float32"),
        (train.ema, "without an average of the weights: set train.ema to 0"),
        (train.replay_groups, "without replay: set train.replay_groups to 0"),
        (
            config.reference.coefficient or config.teacher.coefficient,
            "without other policies: set reference.coefficient and teacher.coefficient to 0",
        ),
        (
            config.staleness.proximal in ("boundary", "snapshot"),
            "without scores under earlier weights: set staleness.proximal to behaviour",
        ),
    )
    return next((f"images are read {why}" for holds, why in reasons if holds), "")
