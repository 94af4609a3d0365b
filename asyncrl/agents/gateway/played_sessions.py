"""The sessions that agents of one actor play. Invariant: the messages waiting for the coordinator
are bounded, because no call starts while many of them wait."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import trio

from asyncrl.agents.gateway.capability import capability
from asyncrl.agents.gateway.played_session import PlayedSession, ended
from asyncrl.messages import Message, Play, Reply
from asyncrl.runtime.httpd.asgi import Headers

WAITING = 1024
"""Number of waiting messages at which no further call starts."""
_BEARER = b"Bearer "


class Outbound(Protocol):
    """A receiver of messages: the link to the coordinator, or a stand-in."""

    async def send(self, message: Message, *buffers: bytes) -> None:
        """Send a message and its buffers."""
        ...


class PlayedSessions:
    """All attempts that are played here. `key` is the run's key."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._sessions: dict[tuple[int, int], PlayedSession] = {}
        self._names: dict[str, PlayedSession] = {}
        self._hushed = False
        self._known: set[bytes] = {_digest(key)}
        self._queue, self._queued = trio.open_memory_channel[tuple[Message, tuple[bytes, ...]]](
            math.inf
        )

    @property
    def ready(self) -> bool:
        """True if messages reach the coordinator in time."""
        return self._queued.statistics().current_buffer_used < WAITING

    def open(
        self,
        play: Play,
        paused: Callable[[], AbstractContextManager[None]],
        heard: Callable[[], None] = lambda: None,
    ) -> PlayedSession:
        """Begin an attempt."""
        session = PlayedSession(play, self.say, paused, heard)
        self._sessions[play.rollout, play.attempt] = self._names[session.name] = session
        self._known |= self._keys(session.name)
        return session

    def close(self, session: PlayedSession) -> None:
        """End an attempt; no more messages are sent for it."""
        session.end()
        del self._sessions[session.play.rollout, session.play.attempt], self._names[session.name]
        self._known -= self._keys(session.name)

    def named(self, name: str) -> PlayedSession:
        """The session of this name. Raises GatewayError (404) if no agent plays it."""
        if (session := self._names.get(name)) is None:
            raise ended(name)
        return session

    def heard(self, name: str) -> None:
        """Note that a request with a session's key has come, if the session is played."""
        if (session := self._names.get(name)) is not None:
            session.heard()

    def take(self, reply: Reply, ids: memoryview, behaviour: memoryview) -> None:
        """Give a reply to its session, if that is still played."""
        if (session := self._sessions.get((reply.rollout, reply.attempt))) is not None:
            session.take(reply, ids, behaviour)

    def known(self, headers: Headers) -> bool:
        """True if a request with these headers has the run's key, or one of a played session."""
        return any(
            _digest(value.removeprefix(_BEARER)) in self._known
            for name, value in headers
            if (name == b"authorization" and value.startswith(_BEARER)) or name == b"x-api-key"
        )

    def is_run_key(self, key: str) -> bool:
        """True if this is the run's own key."""
        return hmac.compare_digest(key.encode(errors="surrogatepass"), self.key)

    def say(self, message: Message, *buffers: bytes) -> None:
        """Send a message after all others; once hushed, drop it, because a host may leave a drained
        guest late."""
        if not self._hushed:
            self._queue.send_nowait((message, buffers))

    async def send(self, link: Outbound) -> None:
        """Send the messages, until `hush`."""
        async for message, buffers in self._queued:
            await link.send(message, *buffers)

    def hush(self) -> None:
        """Take no more messages; those that wait are still sent."""
        self._hushed = True
        self._queue.close()

    def _keys(self, name: str) -> set[bytes]:
        return {
            _digest(capability(self.key, name, "call").encode()),
            _digest(capability(self.key, name, "reward").encode()),
        }


def _digest(key: bytes) -> bytes:
    # so that the time of a lookup reveals nothing about a key
    return hashlib.sha256(key).digest()
