"""The process through which Ray places a run's agents: `python -m asyncrl.launch.cluster.ray_driver
RUN`. The launcher starts it if `cluster.kind` is ray.

It is the driver of a job of Ray, and the launcher imports nothing of Ray: any end of this
process ends the job, and all that Ray has started for it. Ray places agents and does not restart
them (`max_restarts=0`): this process does, so that restarts are counted in one place.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl import config as configuration
from asyncrl.config import Config
from asyncrl.config.cluster import agent_cores, ranks_here, reward_room_of
from asyncrl.config.errors import BAD_INPUT, ConfigError
from asyncrl.config.gpus import agent_gpus, gpus_of, trainer_agent_gpus, visible
from asyncrl.launch.cluster.ray_agent import AgentEnd, RayAgent
from asyncrl.messages import JoinedRole
from asyncrl.messages.address import TcpAddress
from asyncrl.runtime import logs
from asyncrl.runtime.processes.process import become_child
from asyncrl.runtime.run_dir import JOIN_TOKEN, RUN_TOML
from asyncrl.words import whole

logger = logging.getLogger(__name__)

SHORT_S = 20.0
"""An agent that lives for less has not taken part."""
SHORT_LIVES = 3
"""Short lives in a row after which an agent is given up; one that never took part ends the run."""
KNOCK_S = 10.0
"""Seconds that Ray's head has to answer."""
LOST = 1
KEYS: dict[JoinedRole, str] = {
    "rollout": "cluster.agents, cluster.agent_cores",
    "trainer": "cluster.trainer_agents",
    "reward": "cluster.reward_agents",
}
"""The settings that say how many nodes there are for a role's actors."""


def main() -> None:
    """Keep agents until the run is over. Ends with status 2, and a sentence, if Ray cannot."""
    become_child()
    parser = argparse.ArgumentParser(prog="python -m asyncrl.launch.cluster.ray_driver")
    parser.add_argument("run", type=Path)
    run: Path = parser.parse_args().run
    config = configuration.read(run / RUN_TOML)
    logs.start(run, "ray", 0, config.run.log)
    try:
        _keep_agents(config, (run / JOIN_TOKEN).read_bytes())
    except ConfigError as error:
        print(error, file=sys.stderr)  # the launcher shows it to the user
        raise SystemExit(BAD_INPUT) from None


def _keep_agents(config: Config, token: bytes) -> None:
    """Keep an agent on a node of its own for each machine that is set, until they end with the run.
    Raises ConfigError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Scheduling

    cluster, parts = config.cluster, ray_parts(config)
    address = cluster.ray_address
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, ValueError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(
            f"Ray does not answer at {address!r} (cluster.ray_address; {why}): start one by "
            "`ray start --head`, or correct the address."
        ) from None
    here = ray.util.get_node_ip_address()
    refuse_loopback(config, ray.nodes(), here)
    _held = hold_gpus(len(gpus_of(config).trainer), here, cluster.join_s)
    group = _placed(config, parts)

    def started(bundle: int) -> Any:
        """Start the agent of a bundle, and return the reference to its end."""
        began[bundle] = time.monotonic()
        strategy, part = Scheduling(group, placement_group_bundle_index=bundle), parts[bundle]
        actor: Any = ray.remote(num_cpus=part.cores, num_gpus=part.gpus, max_restarts=0)(RayAgent)
        placed = actor.options(scheduling_strategy=strategy)
        holder = holders[bundle] = placed.remote(token, part.cores, part.role)
        return holder.wait.remote()

    holders: dict[int, Any] = {}  # an actor of Ray lives as long as there is a reference to it
    began: dict[int, float] = {}
    lives = AgentLives()
    why = ""
    ends = {started(bundle): bundle for bundle in range(len(parts))}
    while ends:
        [end], _ = ray.wait([*ends], num_returns=1)
        bundle = ends.pop(end)
        try:
            status, words = AgentEnd(*ray.get(end))
        except ray.exceptions.RayError as error:
            status, words = LOST, str(error)
        if status == 0:
            continue
        logger.warning("agent %d ended with %d: %s", bundle, status, words)
        if lives.another(bundle, status, time.monotonic() - began[bundle]):
            ends[started(bundle)] = bundle
            continue
        why = f"an agent started by Ray keeps failing; it last ended with {status}: {words}"
        if not lives.took_part(bundle):
            raise ConfigError(why)
    if why:  # each of them was given up, or ended with the run
        raise ConfigError(why)


class RayPart(NamedTuple):
    """Resources that Ray gives one agent, and the role of its actors."""

    role: JoinedRole
    cores: int
    gpus: int


def ray_parts(config: Config) -> list[RayPart]:
    """The agents of a run, each of which has a node of its own: those of rollout actors, and then
    those of the trainer's ranks, and of reward actors, which have a core for each."""
    cluster = config.cluster
    engines = RayPart("rollout", agent_cores(config), agent_gpus(config))
    ranks = RayPart("trainer", ranks_here(config), trainer_agent_gpus(config))
    judges = RayPart("reward", reward_room_of(config), 0)
    return [
        *[engines] * cluster.agents,
        *[ranks] * cluster.trainer_agents,
        *[judges] * cluster.reward_agents,
    ]


class AgentLives:
    """Counts the lives of each bundle's agent, and decides whether there is another one."""

    def __init__(self) -> None:
        self._short = Counter[int]()  # lives in a row that were short
        self._took_part = set[int]()

    def another(self, bundle: int, status: int, seconds: float) -> bool:
        """True if an agent that ended with `status`, which is not 0, after `seconds` is started
        again; False if it is given up.

        Example: one that lives for 60, 1, 2 and 3 s is started three times again, and given up.
        """
        if seconds < SHORT_S:
            self._short[bundle] += 1
        else:
            self._short[bundle] = 0
            self._took_part.add(bundle)
        return status != BAD_INPUT and self._short[bundle] < SHORT_LIVES

    def took_part(self, bundle: int) -> bool:
        """True if any of its lives was long enough to take part."""
        return bundle in self._took_part


def _knock(address: str) -> None:
    """Raise OSError if no server listens at `host:port`: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and (number := whole(port)) is not None:
        socket.create_connection((host.strip("[]"), number), timeout=KNOCK_S).close()


def hold_gpus(count: int, here: str, within_s: float) -> Any:
    """An actor of Ray that holds the trainer's `count` GPUs on the node `here` as long as there is
    a reference to it, so that no agent gets them; None if Ray has no GPUs there. Raises ConfigError
    if Ray has not given them within `within_s` seconds (the start of its process takes some of
    these), and if they are not the first `count` that this process may use."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    [node] = [node for node in nodes if node["NodeManagerAddress"] == here][:1]
    if not count or not node["Resources"].get("GPU"):
        return None
    holder: Any = ray.remote(num_cpus=0, num_gpus=count, resources={f"node:{here}": 0.001})(
        HeldGpus
    )
    held = holder.remote()
    try:
        names = ray.get(held.gpus.remote(), timeout=within_s)
    except ray.exceptions.GetTimeoutError:
        raise ConfigError(
            f"Ray has not given the {count} GPUs that the trainer needs on this node, {here}, "
            f"within {within_s:g} s (cluster.join_s): lower train.ranks, or end what uses them."
        ) from None
    mine = visible(range(count), os.environ.get("CUDA_VISIBLE_DEVICES"))
    if ",".join(names) != mine:
        raise ConfigError(
            f"Ray gives the trainer the GPUs {','.join(names)} of this node, and it would use "
            f"{mine}: start `asyncrl train` with CUDA_VISIBLE_DEVICES={','.join(names)}."
        )
    return held


class HeldGpus:
    """Ray's actor that holds GPUs, and does not use them."""

    def gpus(self) -> list[str]:
        """Names of its GPUs, as in CUDA_VISIBLE_DEVICES, in order."""
        import ray

        return sorted(map(str, ray.get_gpu_ids()), key=lambda name: (len(name), name))


def _placed(config: Config, parts: list[RayPart]) -> Any:
    """A placement group with a node of its own for each agent. Raises ConfigError if Ray does
    not have them in time."""
    import ray
    from ray.util.placement_group import placement_group

    cluster = config.cluster
    bundles = [{"CPU": part.cores} | ({"GPU": part.gpus} if part.gpus else {}) for part in parts]
    group = placement_group(bundles, strategy="STRICT_SPREAD")
    if not group.wait(cluster.join_s):
        nodes = [node for node in ray.nodes() if node["Alive"]]
        has = _amounts(nodes, "CPU") + " cores"
        if any(part.gpus for part in parts):
            has = f"{has} and {_amounts(nodes, 'GPU')} GPUs"
        wanted = " and ".join(
            f"{count} nodes with {part.cores} free cores"
            f"{f' and {part.gpus} free GPUs' if part.gpus else ''} each ({KEYS[part.role]})"
            for part, count in Counter(parts).items()
        )
        raise ConfigError(
            f"Ray has no {wanted} within {cluster.join_s:g} s: it has {len(nodes)}, with {has}."
        )
    return group


def _amounts(nodes: list[dict[str, Any]], resource: str) -> str:
    """The amounts of a resource on these nodes, from the least to the most."""
    return ", ".join(map(str, sorted(int(node["Resources"].get(resource, 0)) for node in nodes)))


def refuse_loopback(config: Config, nodes: list[dict[str, Any]], here: str) -> None:
    """Raise ConfigError if another machine would connect to its own loopback."""
    away = sorted({str(node["NodeManagerAddress"]) for node in nodes if node["Alive"]} - {here})
    if away and TcpAddress(config.cluster.host, 0).loopback:
        raise ConfigError(
            f"cluster.host is {config.cluster.host}, and Ray has nodes elsewhere ({away[0]}): set "
            f"cluster.host and publication.host to this machine's address, {here}."
        )


if __name__ == "__main__":
    main()
