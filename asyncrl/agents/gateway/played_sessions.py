"""The sessions that agents of one actor play. Invariant: what waits to be sent to the coordinator
is bounded: there are no new calls while much of it waits."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import trio

from asyncrl.agents.gateway.capability import capability
from asyncrl.agents.gateway.played_session import PlayedSession, ended
from asyncrl.messages import Message, Play, Reply
from asyncrl.runtime.httpd.asgi import Headers
from asyncrl.runtime.ipc.link import Link

WAITING = 1024
"""Messages that wait to be sent, from which on there are no new calls."""
_BEARER = b"Bearer "


class PlayedSessions:
    """Every attempt that is played here. `key` is the run's."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._sessions: dict[tuple[int, int], PlayedSession] = {}
        self._names: dict[str, PlayedSession] = {}
        self._known: set[bytes] = {_digest(key)}
        self._say, self._said = trio.open_memory_channel[tuple[Message, tuple[bytes, ...]]](
            math.inf
        )

    @property
    def ready(self) -> bool:
        """True if what is said reaches the coordinator in time."""
        return self._said.statistics().current_buffer_used < WAITING

    def open(self, play: Play, paused: Callable[[], AbstractContextManager[None]]) -> PlayedSession:
        """Begin an attempt."""
        session = PlayedSession(play, self.say, paused)
        self._sessions[play.rollout, play.attempt] = self._names[session.name] = session
        self._known |= self._keys(session.name)
        return session

    def close(self, session: PlayedSession) -> None:
        """End an attempt, of which nothing more is said."""
        session.end()
        del self._sessions[session.play.rollout, session.play.attempt], self._names[session.name]
        self._known -= self._keys(session.name)

    def named(self, name: str) -> PlayedSession:
        """The session of this name. Raises GatewayError (404) where it is not played."""
        if (session := self._names.get(name)) is None:
            raise ended(name)
        return session

    def take(self, reply: Reply, ids: memoryview, behaviour: memoryview) -> None:
        """Give a reply to its session, if it is still played."""
        if (session := self._sessions.get((reply.rollout, reply.attempt))) is not None:
            session.take(reply, ids, behaviour)

    def known(self, headers: Headers) -> bool:
        """True if a request with these headers comes from who has a key that opens something."""
        given = next((value for name, value in headers if name == b"authorization"), b"")
        return given.startswith(_BEARER) and _digest(given[len(_BEARER) :]) in self._known

    def is_run_key(self, given: str) -> bool:
        """True if this is the run's own key."""
        return hmac.compare_digest(given.encode(errors="surrogatepass"), self.key)

    def say(self, message: Message, *buffers: bytes) -> None:
        """Send a message behind all others."""
        self._say.send_nowait((message, buffers))

    async def send(self, link: Link) -> None:
        """Send what is said, until `hush`."""
        async for message, buffers in self._said:
            await link.send(message, *buffers)

    def hush(self) -> None:
        """Say nothing more; what was said is still sent."""
        self._say.close()

    def _keys(self, name: str) -> set[bytes]:
        return {
            _digest(capability(self.key, name, "call").encode()),
            _digest(capability(self.key, name, "reward").encode()),
        }


def _digest(key: bytes) -> bytes:
    # what is looked up tells nothing of a key by the time that it takes
    return hashlib.sha256(key).digest()
