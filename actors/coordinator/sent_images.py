"""Images for engines on other machines. Invariant: an actor gets the bytes of an image once, before
the first lease that shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

from asyncrl.actors.coordinator.peers import Peer
from asyncrl.messages import Images

logger = logging.getLogger(__name__)

FRAME_BYTES = 2**24
"""Bytes from which on the images of a frame are enough."""


class SentImages:
    """The images that each peer has got; `read` gives one's bytes by its hash."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._read = read
        self._sent = WeakKeyDictionary[Peer, set[str]]()

    def send(self, peer: Peer, names: Iterable[str]) -> None:
        """Send those of the named images that the peer has not got. One that cannot be read is left
        out: the engine refuses what shows it."""
        sent, pngs = self._sent.setdefault(peer, set()), list[bytes]()
        for name in dict.fromkeys(names):
            if name in sent:
                continue
            try:
                pngs.append(self._read(name))
            except ValueError as error:
                logger.warning("%s is not sent an image: %s", peer.name, error)
                continue
            sent.add(name)
            if sum(map(len, pngs)) >= FRAME_BYTES:
                _send(peer, pngs)
                pngs = []
        if pngs:
            _send(peer, pngs)


def _send(peer: Peer, pngs: list[bytes]) -> None:
    peer.send(Images(list(map(len, pngs))), b"".join(pngs))
