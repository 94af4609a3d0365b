"""Programs that are run for code of asyncio, as agents are, in a thread of their own."""

from __future__ import annotations

import asyncio

from asyncrl.sandbox.programs.program import Program, Ran
from asyncrl.sandbox.programs.runner import Sandbox, Stop, run


async def run_in_asyncio(program: Program, sandbox: Sandbox) -> Ran:
    """Run a program. As many run at a time as the loop's executor has threads. Cancelled, it kills
    the program, waits until that is gone, and is cancelled then. Raises ProgramError."""
    with Stop() as stop:
        running = asyncio.ensure_future(asyncio.to_thread(run, program, sandbox, stop))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([running])
            raise
