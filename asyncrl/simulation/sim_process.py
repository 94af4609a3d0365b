"""A simulated process: a task that can be killed and stopped. Invariant: a killed one is silent
from that moment, whatever its code still does.

It is a `Child` of a supervisor: a cancel scope around an actor's `main`, and the ends of its
connections, which die with it. While it is stopped it neither hears nor says anything; its clock
goes on, as a process's does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from asyncrl.messages import Role
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.simulation.fake_learner import FakeLearner
from asyncrl.simulation.fake_player import FakePlayer
from asyncrl.simulation.fakes import FakeEngine, FakeReceiver, FakeVerifiers
from asyncrl.simulation.network import MemoryPipe

KILLED = -9


class SimProcess:
    """One start of one actor. `failed` is told of an exception that ended it."""

    def __init__(
        self,
        role: Role,
        index: int,
        incarnation: int,
        failed: Callable[[SimProcess, BaseException], None],
    ) -> None:
        self.role: Role = role
        self.index = index
        self.incarnation = incarnation
        self.waits = Waits()
        self.pipes: list[MemoryPipe] = []
        self.engine: FakeEngine | None = None
        self.receiver: FakeReceiver | None = None
        self.learner: FakeLearner | None = None
        self.verifiers: FakeVerifiers | None = None
        self.player: FakePlayer | None = None
        self.on_death: Callable[[], None] = lambda: None
        self.frozen = False
        self.noticed = trio.Event()
        """Set when it is told to end, as by SIGTERM; what it does then is its own."""
        self._failed = failed
        self._scope = trio.CancelScope()
        self._over = trio.Event()
        self._code = 0
        self._said = ""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def alive(self) -> bool:
        return not self._over.is_set() and not self._scope.cancel_called

    async def run(self, main: Callable[[SimProcess], Awaitable[None]]) -> None:
        """Run `main`, as this process."""
        try:
            with self._scope:
                await main(self)
        except* Exception as errors:  # noqa: BLE001 (its supervisor is told what ended it)
            self._code, self._said = (
                1,
                "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves(errors)),
            )
            if not self._scope.cancel_called:
                self._failed(self, errors)
        finally:
            self._die()
            self._over.set()

    def kill(self) -> None:
        """End it at once, as SIGKILL does."""
        if self.alive:
            self._die()
            self._scope.cancel()

    def exit(self, code: int) -> None:
        """Say with which code it ends."""
        self._code = code

    def freeze(self, frozen: bool) -> None:
        """Stop it, or let it go on."""
        self.frozen = frozen
        for pipe in self.pipes:
            pipe.freeze(frozen)

    def connect(self, pipe: MemoryPipe) -> None:
        """Own this end of a connection, too."""
        pipe.freeze(self.frozen)
        self.pipes.append(pipe)

    def _die(self) -> None:
        for pipe in self.pipes:
            pipe.die()
        self.on_death()

    # ---------------------------------------------------------------------------- supervisor.Child

    async def wait(self) -> int:
        await self._over.wait()
        return self._exit

    displaced = False

    async def kill_group(self) -> int:
        self.kill()
        with trio.CancelScope(shield=True):
            await self._over.wait()
        return self._exit

    @property
    def _exit(self) -> int:
        return KILLED if self._scope.cancel_called else self._code

    def tail(self) -> str:
        return self._said


def leaves(error: BaseException) -> list[BaseException]:
    """The errors of a group, or the one there is."""
    return (
        [leaf for inner in error.exceptions for leaf in leaves(inner)]
        if isinstance(error, BaseExceptionGroup)
        else [error]
    )
