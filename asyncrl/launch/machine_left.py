"""The resources of its machine that a run has left when it heals: cores and GPUs can become fewer
while it runs, and more again. Invariant: the check takes at most COUNT_S, and if it fails, nothing
is changed."""

from __future__ import annotations

import math
import os
import sys

import trio
from msgspec.structs import replace

from asyncrl.config import Config
from asyncrl.config.lending import lendable
from asyncrl.config.ranks import ranks_left, ranks_of
from asyncrl.runtime.processes.machine import available_cores
from asyncrl.runtime.processes.process import isolated

COUNT_GPUS = "from asyncrl.runtime.processes.machine import gpus_here; print(gpus_here())"
"""A program that counts them again: a process's driver counts them once."""
COUNT_S = 60.0
"""Deadline of that program: a driver may wait for a broken GPU."""


def cores_here(config: Config) -> list[int]:
    """The numbers of the cores that a run may use now."""
    return sorted(os.sched_getaffinity(0))[: config.machine.cores or available_cores()]


async def settings_left(requested: Config, cores: int, machines: int) -> tuple[Config, str] | None:
    """The settings with which a run of the `requested` ones goes on with these `cores`, the GPUs
    that there are now, and these `machines` that joined for the trainer: no more ranks than fit,
    and no more servers than these have GPUs to lend. Also returns a sentence about it. None if the
    resources are not known."""
    resources, gpus = f"{cores} core{'s' if cores > 1 else ''}", 0
    if requested.train.device == "cuda":
        if not (gpus := await _gpus_now()):
            return None
        resources = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    wanted = requested.cluster.trainer_agents
    machines = min(machines, wanted)
    ranks = ranks_left(requested, cores, gpus) * (1 + machines)
    too_many = requested.rollout.lent_actors - lendable(requested, ranks)
    left = replace(
        requested,
        rollout=replace(
            requested.rollout,
            actors=requested.rollout.actors - too_many,
            lent_actors=requested.rollout.lent_actors - too_many,
        ),
        train=replace(
            requested.train, ranks=ranks, replicas=math.gcd(ranks, requested.train.replicas)
        ),
        cluster=replace(requested.cluster, trainer_agents=machines),
    )
    if wanted:
        resources += f", and {machines} of {wanted} machines for the trainer are there"
    wished = ranks_of(requested.train)
    return (
        left,
        f"The trainer goes on with {ranks} of {wished} ranks: this machine has {resources}.",
    )


async def _gpus_now() -> int:
    """The number of GPUs; 0 if it is not known."""
    with trio.move_on_after(COUNT_S):
        counted = await trio.run_process(
            [sys.executable, "-c", COUNT_GPUS],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=isolated(os.environ),
        )
        if counted.returncode == 0:
            return int(counted.stdout)
    return 0
