"""A machine that takes part, in the launcher's view, and the launcher's actors there.

Invariant: an actor ends once, by its agent's report or by the loss of its machine; the run treats a
lost actor as one that was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import trio

from asyncrl.launch.cluster.machine_link import MachineLink
from asyncrl.messages import (
    ActorExited,
    Equipped,
    Join,
    KillActor,
    MachineLeaving,
    Message,
    Role,
    StartActor,
    Unequipped,
)
from asyncrl.runtime.ipc.errors import EndOfStream, LinkBroken, LinkError
from asyncrl.runtime.ipc.link import Link

KILL_S = 20.0
"""Seconds that an agent has to report that an actor is dead, more than it needs itself."""
KILLED = -9
"""The exit code of an actor whose end was not seen: as if by SIGKILL."""
Actor = tuple[Role, int, int]
"""A start of an actor: role, index, incarnation."""
AboutMachine = Equipped | Unequipped | MachineLeaving | ActorExited
"""Messages of an agent about its machine, and about actors there."""


class RemoteActor:
    """A start of an actor on another machine: a `Child` of the launcher's supervision. `need` is
    the tag that its machine must have; empty: any machine will do."""

    def __init__(self, order: StartActor, need: str = "") -> None:
        self.order, self.need = order, need
        self.actor: Actor = (order.role, order.index, order.incarnation)
        self.machine: Machine | None = None
        self.displaced = False
        self._ended = trio.Event()
        self._code, self._words = KILLED, ""

    @property
    def over(self) -> bool:
        """True if it has ended."""
        return self._ended.is_set()

    def end(self, code: int, words: str, *, displaced: bool = False) -> None:
        """Record its end, with these last words, or `displaced`, with its machine. A second end is
        ignored."""
        if not self.over:
            self._code, self._words, self.displaced = code, words, displaced
            self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return self._code

    def kill(self) -> None:
        if self.over:
            return
        if self.machine is None:
            self.end(KILLED, "it was ended while it waited for a machine")
        else:
            self.machine.tell(KillActor(*self.actor))

    async def kill_group(self) -> int:
        self.kill()
        with trio.CancelScope(deadline=trio.current_time() + KILL_S, shield=True):
            await self._ended.wait()
        if not self.over and self.machine is not None:
            self.machine.give_up(f"it did not end an actor within {KILL_S:g} s")
            self.end(KILLED, "its machine did not report its end")
        return self._code

    def tail(self) -> str:
        return self._words


class Machine:
    """A machine that takes part, and its actors, all of one role."""

    def __init__(self, name: str, join: Join, link: Link) -> None:
        self.name, self.agent, self.cores, self.role = name, join.agent, join.cores, join.role
        self.tags = frozenset(join.tags)
        self.actors: dict[Actor, RemoteActor] = {}
        self.places: int | None = None
        """Number of actors that it can have at a time; None: any number."""
        self.leaving = False
        """True if it was told to leave, and its actors end with it; or it was refused, and has
        none."""
        self.gone = trio.Event()
        """Set when its actors have ended, and its name is free."""
        self._link = MachineLink(link, lambda why: self.give_up(f"it {why}"))
        self._scope = trio.CancelScope()
        self._why = ""

    def takes(self, actor: RemoteActor) -> bool:
        """True if it is for actors of that role, has the tag that it needs, and has a place for one
        more."""
        free = self.places is None or len(self.actors) < self.places
        fit = not actor.need or actor.need in self.tags
        return free and fit and actor.order.role == self.role

    def order_for(self, actor: RemoteActor, needed: Collection[str]) -> tuple[bool, float, str]:
        """Its place among the machines that take an actor: the first one gets it. Where places are
        few, an actor without a need leaves those of machines that others need."""
        spared = not actor.need and self.places is not None and not self.tags.isdisjoint(needed)
        return spared, *self.load

    @property
    def load(self) -> tuple[float, str]:
        """Actors for each core, and the name: the machine with the least gets the next actor."""
        return (len(self.actors) + 1) / self.cores, self.name

    def tell(self, message: Message, contents: bytes = b"") -> None:
        """Queue a message. A machine that does not read is given up."""
        self._link.send(message, contents)

    async def sent(self) -> None:
        """Wait until it has taken what was told."""
        await self._link.sent()

    def give_up(self, why: str) -> None:
        """Consider it lost."""
        self._why = self._why or why
        self._scope.cancel()

    async def converse(self, take: Callable[[AboutMachine], None]) -> str:
        """Exchange messages until the machine is lost; returns the reason. `take` is called
        with each message of its agent. Raises LinkError for one that no agent sends."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._link.keep)
                self.give_up(await self._read(take))
        return self._why

    async def _read(self, take: Callable[[AboutMachine], None]) -> str:
        while True:
            try:
                message, _ = await self._link.receive()
            except EndOfStream:
                return "its agent ended"
            except LinkBroken as error:
                return str(error)
            match message:
                case MachineLeaving() | Unequipped() if self.leaving:
                    raise LinkError("malformed", "an agent reports only once that it takes no part")
                case Equipped() | Unequipped() | MachineLeaving() | ActorExited():
                    take(message)
                case _:
                    raise LinkError("malformed", f"an agent does not send {type(message).__name__}")
