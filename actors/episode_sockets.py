"""The gateway for programs in a sandbox: a Unix socket for each attempt at an episode.

Invariant: a socket reaches one session, whatever keys the client has; its connections are bounded,
independently of other sockets; it is removed with the attempt.

The sockets are in a folder of the system's temporary one, because that of the run may not be
entered by the user `nobody`, which programs are where asyncrl is root.
"""

from __future__ import annotations

import hmac
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio

from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.messages.address import UnixAddress
from asyncrl.runtime.httpd.asgi import Application, Headers, HttpRefusal, Receive, Scope, Send
from asyncrl.runtime.httpd.http_limits import HttpLimits
from asyncrl.runtime.httpd.http_server import HttpServer
from asyncrl.runtime.ipc.sockets import listening
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.sandbox.zygote import NOBODY

LIMITS = HttpLimits(connections=16, strangers=4)
"""Limits of one attempt's socket."""


class EpisodeSockets:
    """Opens sockets in `folder`, which are answered by `app`."""

    def __init__(
        self,
        folder: Path,
        app: Application,
        known: Callable[[Headers], bool],
        refused: Callable[[HttpRefusal], None],
        waits: Waits,
    ) -> None:
        self._folder, self._app, self._known = folder, app, known
        self._refused, self._waits = refused, waits

    @asynccontextmanager
    async def open(self, session: str) -> AsyncIterator[str]:
        """Open the socket of a session, and give its path. Raises OSError."""
        server = HttpServer(
            _of_session(session, self._app),
            LIMITS,
            known=self._known,
            refused=self._refused,
            waits=self._waits,
            owner=f"the gateway of {session}",
        )
        path = self._folder / session
        async with listening(UnixAddress(path)) as (listener, _), trio.open_nursery() as nursery:
            _give(path)
            nursery.start_soon(server.run, listener, trio.sleep_forever)
            yield str(path)
            nursery.cancel_scope.cancel()


def _of_session(session: str, app: Application) -> Application:
    """The application, as far as it is this session's."""
    own = (f"/sessions/{session}/", f"/v1/sessions/{session}/")

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(own):
            await app(scope, receive, send)
            return
        error = GatewayError(
            404, "other_session", f"this socket is the session {session!r}'s, and no other's"
        )
        await error.response()(scope, receive, send)

    return answer


@contextmanager
def private_folder(key: bytes, index: int) -> Iterator[Path]:
    """A folder of this actor alone, visible only to its sandboxes; it replaces the one of a
    predecessor that was killed. Its name cannot be guessed without the run's `key`. Raises
    OSError."""
    name = hmac.digest(key, b"asyncrl sockets %d" % index, "sha256").hex()[:32]
    folder = Path(tempfile.gettempdir(), f"asyncrl-{name}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        _give(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _give(path: Path) -> None:
    """Give a path to the user that programs are."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
