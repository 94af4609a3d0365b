"""The launcher's part of Ray: a driver beside it, whose agents join as any machine does."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import trio

from asyncrl.launch.cluster.machines import GOODBYE_S, Machines
from asyncrl.runtime.logs import path as log_path
from asyncrl.runtime.processes.process import spawn
from asyncrl.runtime.processes.supervisor import ActorFailed

logger = logging.getLogger(__name__)


async def keep_ray(run: Path, machines: Machines) -> None:
    """Keep agents by Ray until this is cancelled, which ends them. A failure is passed to
    `machines`."""
    process = spawn(
        "Ray's driver",
        [sys.executable, "-m", "asyncrl.launch.cluster.ray_driver", str(run)],
        log=log_path(run, "ray", 0),
    )
    try:
        if code := await process.wait():
            machines.fail(ActorFailed(process.name, code, process.tail()))
    finally:
        with trio.CancelScope(shield=True):
            if machines.over:
                with trio.move_on_after(GOODBYE_S):  # it ends after its agents, which clean up
                    await process.wait()
            await process.kill_group()
