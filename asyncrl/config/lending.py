"""Lending: rollout actors with the trainer's devices, which decode while it waits, as in
SeamlessFlow and verl for GPUs.

    priority   nobody decides when: the embedded engine shares the trainer's cores at a low
               priority, so the system gives the trainer its cores back as soon as it has work
    switch     an engine decodes, or the trainer computes: the coordinator opens and closes it
               (`actors/coordinator/lent_engines.py`); so it is with servers, and with GPUs, which
               know no priority of processes
"""

from __future__ import annotations

from asyncrl.config.cluster import joined
from asyncrl.config.engines import capabilities
from asyncrl.config.schema import Config
from asyncrl.config.schema.section import Contradictions


def is_lent(config: Config, index: int) -> bool:
    """True for a rollout actor that is lent the trainer's devices: one of the last."""
    return index >= config.rollout.actors - config.rollout.lent_actors


def shares_by_priority(config: Config, index: int) -> bool:
    """True for a rollout actor that has the trainer's cores at a low priority."""
    return config.rollout.lending == "priority" and is_lent(config, index)


def lent_actors(config: Config) -> frozenset[str]:
    """The rollout actors that are opened and closed; none with priorities."""
    rollout = config.rollout
    if rollout.lending == "priority":
        return frozenset()
    return frozenset(f"rollout-{n}" for n in range(rollout.actors) if is_lent(config, n))


def lendable(config: Config, ranks: int) -> int:
    """The number of requested lent actors for which a trainer of this many local ranks has devices:
    one GPU for each rank of a server.

    Example: three servers of two ranks are requested, and the trainer has four ranks: two.
    """
    servers = config.engine.servers
    if servers is None or not servers.settings.launch or config.train.device != "cuda":
        return config.rollout.lent_actors
    return min(config.rollout.lent_actors, ranks // servers.settings.tensor_parallel)


def lending_contradictions(config: Config) -> Contradictions:
    """Yield the keys that contradict each other, and the remedy as the end of a sentence."""
    lent, lending = "rollout.lent_actors", "rollout.lending"
    rollout, apart = config.rollout, capabilities(config.engine.kind).serves_apart
    if not rollout.lent_actors:
        return
    if rollout.lent_actors >= rollout.actors:
        yield (
            (lent, "rollout.actors"),
            "at least one rollout actor needs devices of its own: raise actors, or lower "
            "lent_actors",
        )
    if joined(config):
        yield (
            (lent, "cluster.kind"),
            "only devices of this machine are lent: set kind to local, or lent_actors to 0",
        )
    if rollout.lending == "priority" and apart:
        yield (
            (lent, lending, "engine.kind"),
            "a server and the trainer do not share devices by priority: set lending to switch",
        )
    if config.train.device != "cpu" and not apart:
        yield (
            (lent, "train.device", "engine.kind"),
            f"the {config.engine.kind} engine decodes on cores, and the trainer has a GPU to lend: "
            "choose servers, or set lent_actors to 0",
        )
    if config.staleness.finish_on == "own" and rollout.lending == "switch":
        yield (
            (lending, "staleness.finish_on"),
            "a rollout whose version only a lent engine has would wait for the next loan: set "
            "finish_on to mixed",
        )
    if (servers := config.engine.servers) is None:
        return
    if servers.settings.launch and servers.settings.device != config.train.device:
        yield (
            (lent, "train.device", f"{servers.table}.device"),
            "a lent server decodes on the trainer's devices: set both to the same kind of device",
        )
    if config.train.ranks and lendable(config, config.train.ranks) < rollout.lent_actors:
        yield (
            (lent, f"{servers.table}.tensor_parallel", "train.ranks"),
            "lent servers have the GPUs of the trainer's ranks, of which there are too few: raise "
            "ranks, or lower lent_actors",
        )
    if servers.by_broadcast and servers.settings.backend == "nccl":
        yield (
            (lent, f"{servers.table}.backend"),
            "NCCL allows one process for each GPU, and a lent server shares the trainer's: set "
            "backend to gloo",
        )
