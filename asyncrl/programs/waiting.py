"""Programs that are run for code of trio and of asyncio, in a thread of their own.

Cancelled, both kill the program, wait until it is gone, and then are cancelled.
"""

from __future__ import annotations

import asyncio

import trio

from asyncrl.programs.program import Program, Ran
from asyncrl.programs.runner import Sandbox, Stop, run


async def run_in_trio(program: Program, sandbox: Sandbox) -> Ran:
    """Run a program. As many run at a time as trio has threads. Raises ProgramError."""
    with Stop() as stop:

        async def stopped() -> None:
            try:
                await trio.sleep_forever()
            finally:
                stop.set()

        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stopped)
            try:
                return await trio.to_thread.run_sync(run, program, sandbox, stop)
            except Exception as error:  # noqa: BLE001 (raised below, without a group around it)
                failure = error
            finally:
                nursery.cancel_scope.cancel()
        raise failure


async def run_in_asyncio(program: Program, sandbox: Sandbox) -> Ran:
    """Run a program. As many run at a time as the loop's executor has threads. Raises
    ProgramError."""
    with Stop() as stop:
        running = asyncio.ensure_future(asyncio.to_thread(run, program, sandbox, stop))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([running])
            raise
