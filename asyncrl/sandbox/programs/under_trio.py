"""Running of programs for code of trio, in a thread of their own."""

from __future__ import annotations

import trio

from asyncrl.sandbox.programs.program import Program, Ran
from asyncrl.sandbox.programs.runner import Sandbox, Stop, run


async def run_in_trio(
    program: Program, sandbox: Sandbox, limiter: trio.CapacityLimiter | None = None
) -> Ran:
    """Run a program. As many run at a time as `limiter` says, else as trio has threads. When
    cancelled, it kills the program and waits for its end first. Raises ProgramError."""
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
                return await trio.to_thread.run_sync(run, program, sandbox, stop, limiter=limiter)
            except Exception as error:  # noqa: BLE001 (raised below, without a group around it)
                failure = error
            finally:
                nursery.cancel_scope.cancel()
        raise failure
