"""Contradictions between `[cluster]` and other settings, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from asyncrl.config.schema import Config
from asyncrl.config.servers import servers_of
from asyncrl.messages.address import TcpAddress


def joined(config: Config) -> bool:
    """True if rollout actors run on machines that join."""
    return config.cluster.kind != "local"


def room_of(config: Config) -> int:
    """Rollout actors that a machine has, at most, while no other is lost."""
    return math.ceil(config.rollout.actors / config.cluster.agents)


def agent_cores(config: Config) -> int:
    """Cores that Ray gives each agent."""
    return config.cluster.agent_cores or room_of(config)


def local_rollouts(config: Config) -> int:
    """Number of rollout actors on this machine."""
    return 0 if joined(config) else config.rollout.actors


def reward_room_of(config: Config) -> int:
    """Reward actors that a machine has, at most, while no other is lost."""
    return math.ceil(config.reward.actors / max(1, config.cluster.reward_agents))


def ranks_here(config: Config) -> int:
    """Number of the trainer's ranks on this machine, and on each that joins for the trainer; at
    least one.

    Example: eight ranks, and one machine that joins for the trainer: four.
    """
    return max(1, config.train.ranks // (1 + config.cluster.trainer_agents))


def cluster_contradictions(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the keys that contradict each other, and the remedy as the end of a sentence."""
    cluster = config.cluster
    if not joined(config):
        for key in ("trainer_agents", "reward_agents"):
            if getattr(cluster, key):
                yield (
                    ("cluster.kind", f"cluster.{key}"),
                    "no machine joins a run of this one alone: set kind to agents or ray, or "
                    f"{key} to 0",
                )
        return
    if config.reward.actors < cluster.reward_agents:
        yield (
            ("cluster.reward_agents", "reward.actors"),
            "a machine without an actor would do nothing: raise actors, or lower reward_agents",
        )
    machines = 1 + cluster.trainer_agents
    if config.train.ranks % machines:
        yield (
            ("train.ranks", "cluster.trainer_agents"),
            f"this machine and those that join for the trainer have as many ranks each: make ranks "
            f"a multiple of {machines}",
        )
    if config.rollout.actors < cluster.agents:
        yield (
            ("cluster.agents", "rollout.actors"),
            "a machine without an actor would do nothing: raise actors, or lower agents",
        )
    servers = servers_of(config)
    if servers is not None and servers.settings.urls:
        yield (
            ("cluster.kind", f"{servers.table}.urls"),
            "an actor starts its server on its own machine: set launch in place of urls, or kind "
            "to local",
        )
    if config.model.lora.rank:
        yield (
            ("cluster.kind", "model.lora.rank"),
            "machines that join are not sent the base that adapters are merged into: set rank to "
            "0, or kind to local",
        )
    away = not TcpAddress(cluster.host, 0).loopback
    if away and TcpAddress(config.publication.host, 0).loopback:
        yield (
            ("cluster.host", "publication.host"),
            "other machines cannot fetch weights from this one's loopback: set publication.host "
            "to an address that they reach",
        )
    if cluster.host in ("0.0.0.0", "::"):  # refused
        yield (
            ("cluster.host",),
            "others dial it, and a certificate names it: give one address of this machine",
        )
