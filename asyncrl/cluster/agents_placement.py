"""Placement over machines that joined: rollout actors there, every other actor beside the
launcher."""

from __future__ import annotations

from asyncrl.cluster.local_placement import LocalPlacement
from asyncrl.cluster.machines import Machines
from asyncrl.ipc.messages import Role
from asyncrl.processes.supervisor import Child


class AgentsPlacement:
    """The `ActorPlacement` of a run with `cluster.kind` agents or ray."""

    def __init__(self, local: LocalPlacement, machines: Machines) -> None:
        self._local, self._machines = local, machines

    async def ready(self, role: Role) -> None:
        """Wait for what this machine needs; another one joins when it is ready."""
        if role != "rollout":
            await self._local.ready(role)

    def start(self, role: Role, index: int, incarnation: int, *, resume: bool) -> Child:
        """Start one actor. A rollout actor waits for a machine where there is none."""
        if role == "rollout":
            return self._machines.start(role, index, incarnation, resume=resume)
        return self._local.start(role, index, incarnation, resume=resume)
