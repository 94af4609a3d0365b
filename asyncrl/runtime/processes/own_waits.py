"""The waits of a real process. Invariant: no deadline of them counts time in which the process did
not run, and none is judged before what came meanwhile could be read.
"""

from __future__ import annotations

import math

import trio

from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.processes.standstill import stood_s


def own_waits() -> Waits:
    """The waits of this process, in whose trio run this is called."""
    standstills = _Standstills()
    trio.lowlevel.add_instrument(standstills)
    return Waits(standstills.scopes)


class _Standstills(trio.abc.Instrument):
    """Puts off the deadlines of `scopes` by each standstill, before trio judges any of them.
    Virtual time jumps without a standstill, so simulated processes do without."""

    def __init__(self) -> None:
        self.scopes = set[trio.CancelScope]()
        self._due = math.inf  # when trio's loop should go on

    def before_io_wait(self, timeout: float) -> None:
        """Notice that tasks ran for as long as a standstill: the process was stopped amid them."""
        self._put_off()
        self._due = trio.current_time() + timeout

    def after_io_wait(self, timeout: float) -> None:
        """Notice that the wait was longer than it should have been."""
        self._put_off()
        self._due = trio.current_time()

    def _put_off(self) -> None:
        if stood := stood_s(self._due, trio.current_time()):
            for scope in self.scopes:
                scope.deadline += stood
