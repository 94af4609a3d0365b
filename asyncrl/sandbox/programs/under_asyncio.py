"""Running of programs for code of asyncio, as agents are, in a thread of their own."""

from __future__ import annotations

import asyncio

from asyncrl.sandbox.programs.program import Program, Ran
from asyncrl.sandbox.programs.runner import Sandbox, Stop, run


async def run_in_asyncio(program: Program, sandbox: Sandbox) -> Ran:
    """Run a program. As many run at a time as the loop's executor has threads. When
    cancelled, it kills the program and waits for its end first. Raises ProgramError."""
    with Stop() as stop:
        running = asyncio.ensure_future(asyncio.to_thread(run, program, sandbox, stop))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([running])
            raise
