"""Placement over machines that joined: rollout actors there, and, if set so, reward actors and
all ranks of the trainer but the first ones; every other actor beside the launcher."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.config.cluster import ranks_here
from asyncrl.launch.cluster.local_placement import LocalPlacement
from asyncrl.launch.cluster.machines import Machines
from asyncrl.messages import Role
from asyncrl.runtime.processes.supervisor import Child


class AgentsPlacement:
    """The `ActorPlacement` of a run with `cluster.kind` agents or ray."""

    def __init__(
        self, config: Config, local: LocalPlacement, machines: Machines, rank_0: str
    ) -> None:
        """Ranks elsewhere find rank 0 at the address `rank_0`; empty if there are none."""
        self._config, self._local, self._machines = config, local, machines
        self._rank_0 = rank_0

    async def ready(self, role: Role) -> None:
        """Wait for this machine's fork server; another machine joins when it is ready."""
        if role != "rollout":
            await self._local.ready(role)

    def start(self, role: Role, index: int, incarnation: int, *, resume: bool) -> Child:
        """Start one actor. One that belongs elsewhere waits until there is a machine for it."""
        if role == "rollout":
            return self._machines.start(role, index, incarnation, resume=resume)
        if role == "reward" and self._config.cluster.reward_agents:
            return self._machines.start(role, index, incarnation, resume=resume)
        if role == "trainer" and index >= ranks_here(self._config):
            rank_0 = self._rank_0
            return self._machines.start(role, index, incarnation, resume=resume, rank_0=rank_0)
        arguments = []
        if role == "trainer" and index == 0 and self._rank_0:
            arguments = ["--rank-0", self._rank_0]
        return self._local.start(role, index, incarnation, resume=resume, arguments=arguments)
