"""The sinks of a run, each a process that lives until the run is over. Invariant: a failure of a
sink does not affect the run, and is reported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import trio

from asyncrl.config.schema import SinkName
from asyncrl.escape import escaped
from asyncrl.runtime import logs
from asyncrl.runtime.processes.process import Process, last_words, spawn
from asyncrl.runtime.processes.supervisor import describe_exit

QUIET = {"WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""Variables that stop the telemetry of sinks' libraries; they are read at the import."""
FINISH_S = 60.0
"""Seconds that a sink has for the last figures."""
SOON_S = 2.0
"""Seconds after which the user is told of the wait."""


async def keep_sink(
    run: Path,
    name: SinkName,
    over: trio.Event,
    note: Callable[[str], None],
    limit_s: float = FINISH_S,
) -> None:
    """Feed the sink `name` until the run is `over`, and for `limit_s` seconds more at most; `note`
    is called if it fails, or cannot be started."""
    try:
        await _feed(run, name, over, note, limit_s)
    except (OSError, MemoryError) as error:
        note(f"The sink {name} could not be started ({error}), and the run continues without it.")


async def _feed(
    run: Path, name: SinkName, over: trio.Event, note: Callable[[str], None], limit_s: float
) -> None:
    log = logs.path(run, name, 0)
    small = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    theirs, ours = os.pipe()
    with os.fdopen(ours, "wb") as pipe, os.fdopen(theirs, "rb") as end:
        process = spawn(
            f"the sink {name}",
            [
                sys.executable,
                "-m",
                "asyncrl.explain.sinks.sink_process",
                str(run),
                name,
                str(theirs),
            ],
            log=log,
            env={**small, **{name: os.environ.get(name, value) for name, value in QUIET.items()}},
            descriptors=(theirs,),
        )
        end.close()
        try:
            code = await _ended(process, over)
            pipe.close()
            with trio.move_on_after(SOON_S):
                code = await process.wait()
            if code is None:
                note(f"Sending the last figures to {name}, for {limit_s:g} s at most …")
                with trio.move_on_after(limit_s):
                    code = await process.wait()
            if code is None:
                note(f"The sink {name} had not sent everything in {limit_s:g} s: see {log}.")
            elif code:
                why = escaped(last_words(process.tail()), 200)
                note(
                    f"The sink {name} {describe_exit(code)} ({why}), and the run is without "
                    f"it: see {log}."
                )
        finally:
            with trio.CancelScope(shield=True):
                await process.kill_group()


async def _ended(process: Process, over: trio.Event) -> int | None:
    """The exit code of a sink that ends before the run is over, or None."""
    code: int | None = None
    async with trio.open_nursery() as nursery:

        async def until_over() -> None:
            await over.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(until_over)
        code = await process.wait()
        nursery.cancel_scope.cancel()
    return code
