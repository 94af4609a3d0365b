"""The resources of its machine that a run has left when it heals: cores and GPUs can become fewer
while it runs, and more again. Invariant: the check takes at most COUNT_S, and if it fails, nothing
is changed."""

from __future__ import annotations

import math
import os
import sys
from typing import NamedTuple

import trio
from msgspec.structs import replace

from asyncrl.config import Config
from asyncrl.config.cluster import ranks_here
from asyncrl.config.gpus import gpus_of, visible
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


class Faulty(NamedTuple):
    """Places on this machine of ranks that failed repeatedly: so many on its cores, and on its
    GPUs, of which `visible` are left, as in CUDA_VISIBLE_DEVICES; None: all."""

    ranks: int = 0
    visible: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a process uses none of these GPUs."""
        return {} if self.visible is None else {"CUDA_VISIBLE_DEVICES": self.visible}

    async def and_rank(self, config: Config, index: int) -> Faulty:
        """These, and the place of another rank of this machine."""
        numbers = gpus_of(config).trainer
        if not numbers:
            return Faulty(self.ranks + 1, self.visible)
        allowed = self.visible or os.environ.get("CUDA_VISIBLE_DEVICES")
        count = len(allowed.split(",")) if allowed else await _gpus_now(self)
        others = [number for number in range(count) if number != numbers[index]]
        return Faulty(self.ranks, visible(others, allowed))


NONE_FAULTY = Faulty()


async def settings_left(
    requested: Config, cores: int, machines: int, faulty: Faulty = NONE_FAULTY
) -> tuple[Config, str] | None:
    """The settings with which a run of the `requested` ones continues on these `cores`, the GPUs
    that there are now, but `faulty` ones, and these `machines` that joined for the trainer: no more
    ranks than fit, and no more servers than these have GPUs to lend. Also returns a sentence about
    it. None if the resources are not known."""
    resources, gpus = f"{cores} core{'s' if cores > 1 else ''}", 0
    if requested.train.device == "cuda":
        if not (gpus := await _gpus_now(faulty)):
            return None
        resources = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    wanted = requested.cluster.trainer_agents
    machines = min(machines, wanted)
    here = min(ranks_left(requested, cores, gpus), ranks_here(requested) - faulty.ranks)
    ranks = max(1, here) * (1 + machines)
    too_many = requested.rollout.lent_actors - lendable(requested, ranks)
    left = replace(
        requested,
        rollout=replace(
            requested.rollout,
            actors=requested.rollout.actors - too_many,
            lent_actors=requested.rollout.lent_actors - too_many,
        ),
        train=replace(
            requested.train,
            ranks=ranks,
            replicas=math.gcd(ranks, requested.train.replicas),
            context_ranks=math.gcd(ranks, requested.train.context_ranks),
            min_ranks=min(ranks, requested.train.min_ranks),
        ),
        cluster=replace(requested.cluster, trainer_agents=machines),
    )
    if wanted:
        resources += f", and {machines} of {wanted} machines for the trainer are there"
    if faulty.ranks:
        resources += f", without {faulty.ranks} for ranks that failed"
    wished = ranks_of(requested.train)
    return (
        left,
        f"The trainer continues with {ranks} of {wished} ranks: this machine has {resources}.",
    )


async def _gpus_now(faulty: Faulty) -> int:
    """The number of GPUs; 0 if it is not known."""
    with trio.move_on_after(COUNT_S):
        counted = await trio.run_process(
            [sys.executable, "-c", COUNT_GPUS],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=isolated(os.environ) | faulty.environment,
        )
        if counted.returncode == 0:
            return int(counted.stdout)
    return 0
