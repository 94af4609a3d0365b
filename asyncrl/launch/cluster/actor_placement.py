"""Placement: the machine and the process that start each actor of a run."""

from __future__ import annotations

from typing import Protocol

from asyncrl.messages import Role
from asyncrl.runtime.processes.supervisor import Child


class ActorPlacement(Protocol):
    """Starts actors as processes. The returned child can be signalled, waited for, and asked for
    its last words, wherever it runs."""

    async def ready(self, role: Role) -> None:
        """Wait until an actor of this role can be started, or waiting would not help."""
        ...

    def start(self, role: Role, index: int, incarnation: int, *, resume: bool) -> Child:
        """Start one actor. `incarnation` counts its starts from 0. Raises OSError."""
        ...
