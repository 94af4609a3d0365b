"""Placement of a run's processes, derived from `[cluster]`."""

from __future__ import annotations

import math

from asyncrl.config.schema import Config


def joined(config: Config) -> bool:
    """True if rollout actors run on machines that join."""
    return config.cluster.kind != "local"


def room_of(config: Config) -> int:
    """Most rollout actors on a machine, while no other machine is lost."""
    return math.ceil(config.rollout.actors / config.cluster.agents)


def agent_cores(config: Config) -> int:
    """Cores that Ray gives each agent."""
    return config.cluster.agent_cores or room_of(config)


def local_rollouts(config: Config) -> int:
    """Number of rollout actors on this machine; a supervised run has none."""
    return 0 if joined(config) or config.sft.run else config.rollout.actors


def reward_room_of(config: Config) -> int:
    """Most reward actors on a machine, while no other machine is lost."""
    return math.ceil(config.reward.actors / max(1, config.cluster.reward_agents))


def ranks_here(config: Config) -> int:
    """Number of the trainer's ranks on this machine, and on each that joins for the trainer; at
    least one.

    Example: eight ranks, and one machine that joins for the trainer: four.
    """
    return max(1, config.train.ranks // (1 + config.cluster.trainer_agents))
