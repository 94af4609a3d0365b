"""The part of its machine that a run has left when it heals: cores and GPUs can become fewer while
it goes on, and more again. Invariant: looking takes at most COUNT_S, and where it tells nothing,
nothing is changed."""

from __future__ import annotations

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
"""Seconds that it has: a driver may wait for a GPU that is broken."""


def cores_here(config: Config) -> list[int]:
    """The numbers of the cores that a run may use by now."""
    return sorted(os.sched_getaffinity(0))[: config.machine.cores or available_cores()]


async def settings_left(given: Config, cores: int, machines: int) -> tuple[Config, str] | None:
    """The settings with which a run that was `given` these goes on with so many cores, with the
    GPUs that there are, and with so many `machines` that joined for the trainer: no more ranks than
    there is room for, and no more servers than these have GPUs to lend. And the sentence that says
    so. None where nobody says what there is."""
    found, gpus = f"{cores} core{'s' if cores > 1 else ''}", 0
    if given.train.device == "cuda":
        if not (gpus := await _gpus_now()):
            return None
        found = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    wanted = given.cluster.trainer_agents
    machines = min(machines, wanted)
    ranks = ranks_left(given, cores, gpus) * (1 + machines)
    too_many = given.rollout.lent_actors - lendable(given, ranks)
    left = replace(
        given,
        rollout=replace(
            given.rollout,
            actors=given.rollout.actors - too_many,
            lent_actors=given.rollout.lent_actors - too_many,
        ),
        train=replace(given.train, ranks=ranks),
        cluster=replace(given.cluster, trainer_agents=machines),
    )
    if wanted:
        found += f", and {machines} of {wanted} machines for the trainer are there"
    wished = ranks_of(given.train)
    return left, f"The trainer goes on with {ranks} of {wished} ranks: this machine has {found}."


async def _gpus_now() -> int:
    """The number of GPUs; 0 where nobody says."""
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
