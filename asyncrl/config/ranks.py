"""The ranks of the trainer, derived from settings, and the limits of several ranks."""

from __future__ import annotations

from asyncrl.config.cluster import ranks_here
from asyncrl.config.gpus import gpus_of
from asyncrl.config.losses import advantage_of
from asyncrl.config.schema import Config, TrainConfig
from asyncrl.config.schema.section import Contradictions

ONE = "lower ranks to 1"


def ranks_of(train: TrainConfig) -> int:
    """The number of processes that train the model; 1 if unset."""
    return max(1, train.ranks)


def settled_ranks(config: Config, gpus: int) -> int:
    """The number of ranks for this many GPUs on this machine, where `train.ranks` leaves it open:
    all unused ones; one on a CPU, and for a model with adapters (`model.lora`). The same on each
    machine that joins for the trainer.

    Example: eight GPUs, and two servers of two each: four ranks; eight with another machine.
    """
    if config.train.ranks:
        return config.train.ranks
    alone = config.train.device == "cpu" or config.model.lora.rank
    here = 1 if alone else max(1, gpus - gpus_of(config).needed + 1)
    return here * (1 + config.cluster.trainer_agents)


def ranks_left(config: Config, cores: int, gpus: int) -> int:
    """The number of ranks on each machine with which a run continues where its own has this many
    cores and GPUs left: at most as many as fit, and at least one.

    Example: of eight GPUs, four of which are servers', one is lost: three ranks of four.
    """
    here = ranks_here(config)
    spare = gpus - gpus_of(config).needed if config.train.device == "cuda" else cores - here
    return max(1, min(here, here + spare))


def rank_contradictions(config: Config) -> Contradictions:
    """Contradictions of settings with several ranks. A policy beside the model would have to be
    sharded like the model, and no rank has all tokens of a step."""
    train, staleness = config.train, config.staleness
    if ranks_of(train) == 1 and not config.cluster.trainer_agents:
        return
    if staleness.proximal in ("boundary", "snapshot", "ema"):
        yield (
            ("train.ranks", "staleness.proximal"),
            f"several ranks keep no earlier weights, as {staleness.proximal} needs them: set "
            f"proximal to behaviour, recompute or loglinear, or {ONE}",
        )
    if whole := [each.kind for each in staleness.correction if each.whole_step]:
        yield (
            ("train.ranks", "staleness.correction"),
            f"{whole[0]} compares tokens of the whole step, of which a rank has its share: choose "
            f"another correction, or {ONE}",
        )
    if advantage_of(train).needs_gradients:
        yield (
            ("train.ranks", "train.advantage"),
            f"{train.advantage} needs the gradient of each rollout, of which a rank has its share: "
            f"choose another advantage, or {ONE}",
        )
    for name, off in (("router_aux", 0), ("router_bias_rate", 0), ("router_replay", "false")):
        if getattr(train, name):
            yield (
                ("train.ranks", f"train.{name}"),
                f"several ranks neither balance experts nor replay routers: set {name} to {off}, "
                f"or {ONE}",
            )
    if config.publication.rounds(config.model):
        yield (
            ("train.ranks", "publication.dtype"),
            "the gap that rounded weights make is measured with a whole model, of which a rank has "
            f"its share: set dtype to model, or {ONE}",
        )
    for section in ("reference", "teacher", "supervised"):
        if getattr(config, section).coefficient:
            yield (
                ("train.ranks", f"{section}.coefficient"),
                f"several ranks have no {section}: set its coefficient to 0, or {ONE}",
            )
