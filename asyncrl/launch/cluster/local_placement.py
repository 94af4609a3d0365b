"""Placement on this machine: each actor is a child of this process, forked if the fork server is
ready.

Invariant: an actor that is started here dies with this process, by the kernel's parent-death
signal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from asyncrl.config import Config
from asyncrl.config.cores import CoreShares
from asyncrl.config.gpus import gpus_of, visible
from asyncrl.config.ranks import ranks_of
from asyncrl.messages import Role
from asyncrl.runtime.logs import path as log_path
from asyncrl.runtime.processes.forkserver import ForkServer
from asyncrl.runtime.processes.process import Process

ENVIRONMENT = {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment of every actor. Some tasks iterate over sets of strings, and every process must see
the same prompt at the same index; nothing is ever downloaded."""
SMALL = ENVIRONMENT | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Environment of an actor without cores of its own."""
PRELOADED = "asyncrl.actors.preloaded"
"""The module of the fork server that actors are forked from."""


class LocalPlacement:
    """The `ActorPlacement` of every actor beside the launcher."""

    def __init__(
        self,
        config: Config,
        run: Path,
        fork_server: ForkServer,
        shares: CoreShares,
        gpus: str | None = None,
    ) -> None:
        """Actors may use these `gpus`, as in CUDA_VISIBLE_DEVICES; None: this process's."""
        self._config, self._run, self._usable = config, run, gpus
        self._fork_server, self._shares = fork_server, shares

    async def ready(self, role: Role) -> None:
        """Wait for the fork server if the actor needs modules that import slowly. The others are
        started meanwhile."""
        if role in ("trainer", "rollout"):
            await self._fork_server.settled()

    def start(
        self,
        role: Role,
        index: int,
        incarnation: int,
        *,
        resume: bool,
        arguments: Sequence[str] = (),
    ) -> Process:
        """Start one actor as a process, with `arguments` besides its own. An actor without cores of
        its own computes nothing, and runs on any core. One that is started again in a life takes
        over no server, which may have caused its end."""
        if not incarnation:
            arguments = [*arguments, TAKES_OVER]
        return start_actor(
            self._fork_server,
            self._run,
            (role, index, incarnation),
            self._cores_of(role, index),
            [*arguments, *(["--resume"] if resume else [])],
            self._of_rank(role, index),
        )

    def _of_rank(self, role: Role, index: int) -> dict[str, str]:
        """Environment of an actor that has not all GPUs of this process: of one rank of several its
        own, if it has one."""
        gpus = gpus_of(self._config).trainer
        if role != "trainer" or ranks_of(self._config.train) == 1 or not gpus:
            return {} if self._usable is None else {"CUDA_VISIBLE_DEVICES": self._usable}
        allowed = self._usable or os.environ.get("CUDA_VISIBLE_DEVICES")
        return {"CUDA_VISIBLE_DEVICES": visible([gpus[index]], allowed)}

    def _cores_of(self, role: Role, index: int) -> tuple[int, ...] | None:
        """An actor's own cores; None for an actor that has none."""
        match role:
            case "trainer":
                return self._shares.trainers[index]
            case "rollout":
                return self._shares.rollouts[index]
            case _:
                return None


TAKES_OVER = "--takes-over"
"""The argument of an actor that may go on with a server that another one has left."""


def start_actor(
    fork_server: ForkServer,
    run: Path,
    actor: tuple[Role, int, int],
    cores: tuple[int, ...] | None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start the `actor` (role, index, incarnation) of the run in the directory `run` as a child of
    this process, with `arguments` and `environment` besides its own. Without `cores` it has one
    thread. Raises OSError."""
    role, index, incarnation = actor
    threads = len(cores) if cores else 1
    return fork_server.start(
        f"{role}-{index}",
        "asyncrl.actors",
        [role, *map(str, (index, incarnation, threads)), str(run), *arguments],
        log=log_path(run, role, index),
        cores=cores,
        env={**(ENVIRONMENT if cores else SMALL), **(environment or {})},
    )
