"""The page of a run, as a process that lives as long as the launcher. Invariant: a failure of
the page does not affect the run, and is reported.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path

import trio

from asyncrl.config.schema import RunConfig
from asyncrl.messages.address import TcpAddress
from asyncrl.runtime.ipc.keys import write_key
from asyncrl.runtime.logs import path as log_path
from asyncrl.runtime.processes.process import spawn
from asyncrl.runtime.processes.supervisor import describe_exit
from asyncrl.runtime.run_dir import PAGE_KEY


async def keep_page(config: RunConfig, note: Callable[[str], None]) -> None:
    """Keep the page until this is cancelled; `note` is called with its URL and key, and when it
    ends."""
    run = Path(config.dir)
    key = ""
    try:
        if not TcpAddress(config.page_host, config.page_port).loopback:
            key = secrets.token_urlsafe()
            write_key(run / PAGE_KEY, key.encode())
        process = spawn(
            "the page",
            [sys.executable, "-m", "asyncrl.explain.views.page_process", str(run)],
            log=log_path(run, "page", 0),
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    except (OSError, MemoryError) as error:
        note(f"This run's page could not be started ({error}): the run continues without it.")
        return
    try:
        with_key = f"?key={key}" if key else ""
        note(f"The page of this run: http://{config.page_host}:{config.page_port}/{with_key}")
        code = await process.wait()
        note(
            f"The page of this run {describe_exit(code)}, and the run continues without it: see "
            f"{log_path(run, 'page', 0)}."
        )
    finally:
        with trio.CancelScope(shield=True):
            await process.kill_group()
