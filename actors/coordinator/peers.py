"""The actors that are connected.

Invariant: at most one peer has a name. Sending to a peer never waits; a peer that does not read is
cut off.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import trio

from asyncrl.messages import Hello, Message, Report, Role
from asyncrl.runtime.ipc.link import Link

OUTBOX = 512
"""Frames that may wait for one peer. The work of an actor is bounded by its slots, so a full outbox
means that it does not read."""

logger = logging.getLogger(__name__)

Frame = tuple[Message, tuple[object, ...]]


class Peer:
    """One connected actor."""

    def __init__(self, hello: Hello, link: Link) -> None:
        self.role: Role = hello.role
        self.index = hello.index
        self.name = f"{hello.role}-{hello.index}"
        self.pid = hello.pid
        self.incarnation = hello.incarnation
        self.link = link
        self.report = Report(0.0, {}, {}, [])
        self.last_message = 0.0  # seconds on the run's clock when it came
        self.ready = False  # its engine is, or was
        self.scope = trio.CancelScope()  # around its connection
        self.freed: Callable[[], None] = lambda: None
        self._more_waits = False  # there was no room for more
        self._outbox, self._frames = trio.open_memory_channel[Frame](OUTBOX)

    def send(self, message: Message, *buffers: object) -> None:
        """Queue a frame; frames leave in order. A peer that has not read its last OUTBOX frames is
        cut off."""
        try:
            self._outbox.send_nowait((message, buffers))
        except trio.WouldBlock:
            logger.error("%s has not read its last %d frames, and is cut off", self.name, OUTBOX)
            self.scope.cancel()

    def has_room(self) -> bool:
        """True if the outbox has room for more deferrable frames, which may fill half of it. If
        not, `freed` is called as soon as it may."""
        full = 2 * self._outbox.statistics().current_buffer_used >= OUTBOX
        self._more_waits |= full
        return not full

    async def write(self) -> None:
        """Write the outbox to the link until cancelled."""
        async for message, buffers in self._frames:
            await self.link.send(message, *buffers)  # type: ignore[arg-type]
            if self._more_waits and not self._outbox.statistics().current_buffer_used:
                self._more_waits = False
                self.freed()


class LastSeen(NamedTuple):
    """An actor that was connected and is lost: its incarnation and process, and the seconds on
    the run's clock when its link ended."""

    incarnation: int
    pid: int
    at: float


class Roster:
    """The connected actors, by name. `last_seen` has those whose link ended, `drained` those that
    reported it."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed()` is called when an actor comes, goes, or has room again."""
        self._peers: dict[str, Peer] = {}
        self._roles: defaultdict[Role, list[Peer]] = defaultdict(list)  # by index
        self._changed = changed
        self.last_seen: dict[str, LastSeen] = {}
        self.drained: set[str] = set()

    def add(self, peer: Peer) -> Peer | None:
        """Add `peer`. Returns the peer of that name that it replaces, if any."""
        if (previous := self._peers.get(peer.name)) is not None:
            self._roles[peer.role].remove(previous)
        self._peers[peer.name] = peer
        self.drained.discard(peer.name)  # it was another start of this actor
        peer.freed = self._changed
        insort(self._roles[peer.role], peer, key=lambda p: p.index)
        self._changed()
        return previous

    def remove(self, peer: Peer) -> bool:
        """Remove `peer`. Returns False if another one already has its name."""
        if self._peers.get(peer.name) is not peer:
            return False
        del self._peers[peer.name]
        self._roles[peer.role].remove(peer)
        self._changed()
        return True

    def get(self, name: str) -> Peer | None:
        return self._peers.get(name)

    def of(self, role: Role) -> Iterator[Peer]:
        """The connected peers of a role, by index."""
        return iter(list(self._roles[role]))

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._peers.values()))
