"""The coordinator's part of a game: which rollouts a guest's host may play, and what is on the
disk.

Invariant: a guest begins a rollout only when its host seeks it, and answers each seek in the end:
by a seat, as soon as the run has admitted the game, or by the reason why there is none. Nothing is
said to be kept before it is on the disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.peers import Peer
from asyncrl.actors.coordinator.playing import Playing
from asyncrl.experience.games import given_up, seat
from asyncrl.experience.rollout import Rollout
from asyncrl.messages import KeepGame, Kept, NoSeat, Seek, Unseek
from asyncrl.runtime.ipc.waits import Pulse


@dataclass(frozen=True)
class _Unkept:
    """A promise to tell: after event `number` is on the disk."""

    peer: Peer
    kept: Kept
    number: int


class Games:
    """The games of a run, whose groups have `size` members; a `guest`'s are played when they are
    sought."""

    def __init__(self, store: EventStore, playing: Playing, size: int, *, guest: bool) -> None:
        self._store, self._playing, self._size = store, playing, size
        self.guest = guest
        self._sought: dict[tuple[Peer, int], int] = {}
        self._unkept: list[_Unkept] = []
        self._asked = Pulse()

    def on_message(self, peer: Peer, message: Seek | Unseek | KeepGame) -> None:
        """Handle a message of an agents actor."""
        match message:
            case Seek():
                for rollout in given_up(self._store.experience, message.standing):
                    self._playing.give_up(rollout)
                self._sought[peer, message.ticket] = message.key
            case Unseek():
                self._sought.pop((peer, message.ticket), None)
            case KeepGame():
                kept = Kept(message.ticket, self._playing.promise(message))
                self._unkept.append(_Unkept(peer, kept, self._store.cursor))
                self._asked.set()

    def lose(self, peer: Peer) -> None:
        """Forget the requests of an agents actor that is gone."""
        self._sought = {asked: key for asked, key in self._sought.items() if asked[0] is not peer}
        self._unkept = [unkept for unkept in self._unkept if unkept.peer is not peer]

    def answer(self, *, begin: bool) -> None:
        """Answer each seek of a game that the run has admitted: by a seat if episodes may `begin`
        now, or by why there is none."""
        for (peer, ticket), key in list(self._sought.items()):
            found = seat(self._store.experience, key, self._size)
            if found is None or (isinstance(found, Rollout) and not begin):
                continue
            del self._sought[peer, ticket]
            if isinstance(found, Rollout):
                self._playing.sit(found, peer, ticket)
            else:
                peer.send(NoSeat(ticket, found))

    async def keep(self) -> None:
        """Report what is on disk, until cancelled."""
        while True:
            await self._asked.wait()
            await self._store.log.flush()
            told = [unkept for unkept in self._unkept if unkept.number <= self._store.durable]
            self._unkept = [unkept for unkept in self._unkept if unkept not in told]
            for unkept in told:
                unkept.peer.send(unkept.kept)
            if self._unkept:
                self._asked.set()
