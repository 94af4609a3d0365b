"""Checks of this machine before anything starts: its cores, its ports, its certificates and its
GPUs. Each raises ConfigError, which says what to change, and keeps nothing open.
"""

from __future__ import annotations

import errno
import socket
from importlib.metadata import version
from importlib.util import find_spec

from asyncrl.config import Config, ConfigError
from asyncrl.config.cluster import joined, ranks_here
from asyncrl.config.derived import Row
from asyncrl.config.errors import installs
from asyncrl.config.gpus import Gpus
from asyncrl.config.schema import AgentConfig
from asyncrl.runtime.processes.machine import gpus_here

ACTORS = 64
"""Actors of a role for each core of this machine, at most."""
RANKS = 2
"""Ranks of the trainer for each core of this machine, at most: as many as two cores need to try
how four GPUs would share a model."""


def check_cores(config: Config, available: int) -> None:
    """Check that both sides have cores. `available` is the number that this process may use."""
    cores, trainer = config.machine.cores or available, config.machine.trainer_cores
    if cores > available:
        raise ConfigError(
            f"machine.cores is {cores}, but this process may use {available}; more threads than "
            "cores make both sides ten times slower: "
            f"set it to {available} or less, or to 0 for all."
        )
    counts = {"reward.actors": config.reward.actors} if not config.cluster.reward_agents else {}
    counts |= {"agent.actors": config.agent.actors} if config.agent.run else {}
    counts |= {} if joined(config) else {"rollout.actors": config.rollout.actors}
    for key, count in counts.items():
        if count > ACTORS * cores:
            raise ConfigError(
                f"{key} is {count:,}, and there are {cores} cores: each actor is a process of "
                f"this machine; set it to {ACTORS * cores} or less."
            )
    if trainer > cores or (trainer == cores and cores > 1):
        raise ConfigError(
            f"machine.trainer_cores is {trainer} of {cores} cores, which leaves none for "
            "generation: lower it, or set it to 0."
        )
    if config.train.device == "cpu" and ranks_here(config) > RANKS * cores:
        machines = 1 + config.cluster.trainer_agents
        here, on = (" here", f" on {machines} machines") if machines > 1 else ("", "")
        raise ConfigError(
            f"train.ranks is {config.train.ranks}{on}, and there are {cores} cores{here}: ranks "
            "that take turns on a core train no faster than one; set it to "
            f"{cores * machines} or less."
        )


def rank_notes(config: Config, available: int) -> list[Row]:
    """A note where ranks of a trainer on processors take turns on its cores."""
    cores, here = config.machine.cores or available, ranks_here(config)
    if config.train.device != "cpu" or here <= cores:
        return []
    text = f"{here} ranks take turns on {cores} cores: they train no faster than {cores}"
    return [Row("note", "train.ranks", text)]


def check_ports(config: Config) -> None:
    """Check that the ports at which a run will listen are free, and different."""
    _port("metrics", config.metrics.host, config.metrics.port)
    _port("cluster", config.cluster.host, config.cluster.port)
    _port("run.page", config.run.page_host, config.run.page_port)
    if config.run.page_port and config.run.page_port == config.metrics.port:
        raise ConfigError(
            f"run.page_port and metrics.port are both {config.metrics.port}; give each its own."
        )
    if config.agent.run and config.agent.port:
        _agents_ports(config.agent)


def _port(server: str, host: str, port: int) -> None:
    if not port or (error := _refused(host, port)) is None:
        return
    dot = "_" if "." in server else "."  # metrics.port, run.page_port
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        raise ConfigError(
            f"{server}{dot}host is {host!r}, which is not an IPv4 address of this machine; "
            "0.0.0.0 means all of them."
        )
    raise ConfigError(
        f"{server}{dot}port is {port}, and that port {_why(error)}; choose another, or 0 for none."
    )


def check_certificates(config: Config) -> None:
    """Check that certificates for machines that join can be made, that their address is this
    machine's, and that Ray is installed if it places them."""
    cluster = config.cluster
    if not joined(config):
        return
    if find_spec("cryptography") is None:
        raise ConfigError(
            f"cluster.kind is {cluster.kind}, which needs the package cryptography for "
            f"certificates: {installs('cluster')}."
        )
    if cluster.kind == "ray" and find_spec("ray") is None:
        raise ConfigError(f"cluster.kind is ray, which is not installed: {installs('ray')}.")
    if (error := _refused(cluster.host, 0)) is not None:
        raise ConfigError(
            f"cluster.host is {cluster.host!r}, and that is not an IPv4 address of this machine "
            f"({error.strerror})."
        )


def _agents_ports(agent: AgentConfig) -> None:
    """Check the ports of loopback that agents actors have, one each."""
    for port in range(agent.port, agent.port + agent.actors):
        if (error := _refused("127.0.0.1", port)) is not None:
            raise ConfigError(
                f"agent.port gives an actor port {port}, and that port {_why(error)}; choose "
                "another, or 0 for any free one."
            )


def _refused(host: str, port: int) -> OSError | None:
    """The error of listening there; None if there is none."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def _why(error: OSError) -> str:
    return (
        "is in use by another program"
        if error.errno == errno.EADDRINUSE
        else f"cannot be used ({error.strerror})"
    )


def check_gpus(gpus: Gpus, *, torch_computes: bool) -> None:
    """Check for a driver with the needed GPUs, and, if torch computes, a build that can use
    them."""
    if (count := gpus_here()) < gpus.needed:
        raise ConfigError(
            f"the run needs GPUs ({gpus}), and this machine has {count or 'no GPU'} that it may "
            "use: set train.device or the servers' device to cpu, or lower rollout.actors or their "
            "tensor_parallel."
        )
    if torch_computes and "+cpu" in version("torch"):
        raise ConfigError(
            f"train.device or the servers' backend needs GPUs, and torch {version('torch')} is "
            "built for CPUs; install a CUDA build, or set them to cpu and gloo."
        )
