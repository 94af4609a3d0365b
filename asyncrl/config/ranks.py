"""The ranks of the trainer, derived from settings, and the limits of several ranks."""

from __future__ import annotations

import math

from asyncrl.config.cluster import ranks_here
from asyncrl.config.gpus import gpus_of
from asyncrl.config.schema import Config, TrainConfig
from asyncrl.config.schema.section import Contradictions

ONE = "lower ranks to 1"


def ranks_of(train: TrainConfig) -> int:
    """The number of processes that train the model; 1 if unset."""
    return max(1, train.ranks)


def sharing(train: TrainConfig) -> int:
    """The number of ranks that a copy of the model is divided among."""
    return ranks_of(train) // train.replicas


def settled_ranks(config: Config, gpus: int) -> int:
    """The number of ranks for this many GPUs on this machine, where `train.ranks` leaves it open:
    all unused ones; one on a CPU. The same on each machine that joins for the trainer.

    Example: eight GPUs, and two servers of two each: four ranks; eight with another machine.
    """
    if config.train.ranks:
        return config.train.ranks
    here = 1 if config.train.device == "cpu" else max(1, gpus - gpus_of(config).needed + 1)
    return here * (1 + config.cluster.trainer_agents)


def ranks_left(config: Config, cores: int, gpus: int) -> int:
    """The number of ranks on each machine with which a run continues where its own has this many
    cores and GPUs left: at most as many as fit, and at least one.

    Example: of eight GPUs, four of which are servers', one is lost: three ranks of four.
    """
    here = ranks_here(config)
    spare = gpus - gpus_of(config).needed if config.train.device == "cuda" else cores - here
    return max(1, min(here, here + spare))


def divisor(number: int, most: int) -> int:
    """The largest divisor of a number, at least 1, that is at most `most`; of a number beyond 2**32
    a divisor, because no more are tried.

    >>> divisor(12, 5), divisor(12, 2**31), divisor(2**31 - 1, 2**30)
    (4, 12, 1)
    """
    small = [n for n in range(1, min(math.isqrt(number), 2**16) + 1) if number % n == 0]
    return max(n for each in small for n in (each, number // each) if n <= most)


def rank_contradictions(config: Config) -> Contradictions:
    """Contradictions of settings with several ranks. Routers are changed by what all tokens of a
    step did, of which a rank sees its share; and a machine that joins for the trainer has no file
    of the run: it is given what rank 0 reads of the initial model."""
    train, elsewhere = config.train, config.cluster.trainer_agents
    for name, parts, why in (
        ("replicas", train.replicas, "each copy of the model has as many ranks"),
        ("context_ranks", train.context_ranks, "ranks form groups that compute a row together"),
    ):
        if ranks_of(train) % parts and (train.ranks or train.device == "cpu"):
            yield (
                ("train.ranks", f"train.{name}"),
                f"{why}: set {name} to {divisor(ranks_of(train), parts)}, or make ranks a multiple "
                f"of {parts}",
            )
    if train.min_ranks > ranks_of(train) and (train.ranks or train.device == "cpu"):
        yield (
            ("train.min_ranks", "train.ranks"),
            "a run continues with at most the ranks that it has: lower min_ranks to "
            f"{ranks_of(train)}, or raise ranks",
        )
    if ranks_of(train) == 1 and not elsewhere:
        return
    for name, off in (("router_aux", 0), ("router_bias_rate", 0), ("router_replay", "false")):
        if getattr(train, name):
            yield (
                ("train.ranks", f"train.{name}"),
                f"several ranks neither balance experts nor replay routers: set {name} to {off}, "
                f"or {ONE}",
            )
    if not elsewhere:
        return
    for section, policy in (("reference", config.reference), ("teacher", config.teacher)):
        if policy.coefficient and policy.path:
            yield (
                ("cluster.trainer_agents", f"{section}.path"),
                "machines that join for the trainer cannot read another model: set "
                f"{section}.server to one that scores with it, or trainer_agents to 0",
            )
    if config.supervised.coefficient:
        yield (
            ("cluster.trainer_agents", "supervised.coefficient"),
            "machines that join for the trainer cannot read the examples: set coefficient to 0, or "
            "trainer_agents to 0",
        )
