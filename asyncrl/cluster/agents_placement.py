"""Placement over machines that joined: rollout actors there, and ranks of the trainer, but the
first; every other actor beside the launcher."""

from __future__ import annotations

from asyncrl.cluster.local_placement import LocalPlacement
from asyncrl.cluster.machines import Machines
from asyncrl.ipc.messages import Role
from asyncrl.processes.supervisor import Child


class AgentsPlacement:
    """The `ActorPlacement` of a run with `cluster.kind` agents or ray."""

    def __init__(
        self, local: LocalPlacement, machines: Machines, ranks_here: int, rank_0: str
    ) -> None:
        """Of the trainer's ranks `ranks_here` are beside the launcher. The others find rank 0 at
        the address `rank_0`; empty where there are none."""
        self._local, self._machines = local, machines
        self._ranks_here, self._rank_0 = ranks_here, rank_0

    async def ready(self, role: Role) -> None:
        """Wait for what this machine needs; another one joins when it is ready."""
        if role != "rollout":
            await self._local.ready(role)

    def start(self, role: Role, index: int, incarnation: int, *, resume: bool) -> Child:
        """Start one actor. One that is to be elsewhere waits for a machine where there is none."""
        if role == "rollout":
            return self._machines.start(role, index, incarnation, resume=resume)
        if role == "trainer" and index >= self._ranks_here:
            rank_0 = self._rank_0
            return self._machines.start(role, index, incarnation, resume=resume, rank_0=rank_0)
        arguments = []
        if role == "trainer" and index == 0 and self._rank_0:
            arguments = ["--rank-0", self._rank_0]
        return self._local.start(role, index, incarnation, resume=resume, arguments=arguments)
