"""The two ends of a link: who connects, and who serves. Invariant: a link is handed over only when
both ends have proved the run's key, and where it leaves this machine inside TLS.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Literal, TypeVar

import trio

from asyncrl.messages import Message
from asyncrl.messages.address import Address, TcpAddress, UnixAddress
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError, Refusal
from asyncrl.runtime.ipc.framing import MAX_FRAME
from asyncrl.runtime.ipc.keys import prove_to_client, prove_to_server, proving
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.pipes import SocketPipe
from asyncrl.runtime.ipc.sockets import dial, listening
from asyncrl.runtime.ipc.tls import Credentials, Tls, TlsPipe

AUTHENTICATION_S = 5.0
UNAUTHENTICATED = 64
"""Connections that may be proving the key at one time; for another one the oldest has to go."""
MAX_LINKS = 4096
"""Links that a server keeps at one time."""
REFUSAL_S = 0.01
"""Seconds by which a refused connection puts off the next one, so that most of a server's time
stays for those who are in."""
DESCRIPTORS_S = 0.1
"""Seconds, as `REFUSAL_S`, where this process has no descriptor left: the connection stays in the
queue until then."""
FIRST_S = 10.0
"""Seconds in which whoever connects says who it is."""
TRY_S = 10.0
"""Seconds of one attempt to reach a server that may not be there yet."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 1.0
"""Seconds between two attempts, which are doubled from one to the next."""

M = TypeVar("M", bound=Message)


async def connect(
    address: Address, key: bytes, *, tls: Tls | None = None, max_frame: int = MAX_FRAME
) -> Link:
    """A link to the server at `address`, both ends having proved `key`. Over TCP it runs inside
    `tls`, without which only this machine can be talked to; a Unix socket needs none, and has none.
    Raises LinkError, also where nobody listens, and ValueError where TLS is missing or its files
    cannot be used."""
    credentials = _credentials(address, tls, "client")
    try:
        pipe = SocketPipe(await dial(address))
    except OSError as error:
        raise LinkError("broken", f"nobody answers at {address}: {error}") from error
    host = address.host if isinstance(address, TcpAddress) else None
    # longer than the server gives it: this connection may first have to wait for its turn
    with proving(str(address), 2 * AUTHENTICATION_S):
        return await _link(
            pipe,
            credentials,
            host,
            partial(prove_to_server, key=key),
            peer=str(address),
            max_frame=max_frame,
        )


async def reach(address: Address, key: bytes, *, tls: Tls | None = None) -> Link:
    """As `connect`, to a server that may not be there yet: it is tried until it answers, or the
    caller gives up. Raises LinkError where it answers and refuses."""
    pause = FIRST_PAUSE_S
    while True:
        with trio.move_on_after(TRY_S):
            try:
                return await connect(address, key, tls=tls)
            except LinkError as error:
                if error.reason not in ("broken", "silent"):
                    raise
        await trio.sleep(pause)
        pause = min(2 * pause, LAST_PAUSE_S)


async def first_message(link: Link, kind: type[M], within_s: float = FIRST_S) -> M:
    """The message by which the peer of a new link says who it is. Raises LinkError where it says
    something else, or nothing `within_s` seconds."""
    message: Message | None = None
    with trio.move_on_after(within_s):
        message, _ = await link.receive()
    if message is None:
        raise LinkError("silent", f"{link.peer} did not say who it is within {within_s:g} s")
    if not isinstance(message, kind):
        raise LinkError(
            "malformed",
            f"{link.peer} began with {type(message).__name__} instead of {kind.__name__}",
        )
    return message


async def serve(
    address: Address,
    key: bytes,
    handler: Callable[[Link], Awaitable[None]],
    *,
    refused: Callable[[Refusal], None],
    tls: Tls | None = None,
    max_frame: int = MAX_FRAME,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Give each connection that proves `key` to `handler`, in a task of its own, until cancelled;
    `started` gives the address it got. `tls` as for `connect`.

    The link is closed when `handler` returns. A connection that does not prove the key, or whose
    LinkError `handler` lets through, is closed and counted: `refused` is called with the reason,
    and the server goes on. An EndOfStream that `handler` lets through is no failure. Any other
    exception of `handler` ends the server. Raises OSError where the address is taken, and
    ValueError where TLS is missing or its files cannot be used.
    """
    server = _Server(key, _credentials(address, tls, "server"), handler, refused, max_frame)
    async with listening(address) as (listener, bound):
        task_status.started(bound)
        await server.accept(listener, f"a peer at {bound}")


class _Server:
    """The connections of `serve`: `UNAUTHENTICATED` that have not proved the key, at most, and
    `MAX_LINKS` that have. Connections wait after one that was refused."""

    def __init__(
        self,
        key: bytes,
        credentials: Credentials | None,
        handler: Callable[[Link], Awaitable[None]],
        refused: Callable[[Refusal], None],
        max_frame: int,
    ) -> None:
        self._key = key
        self._credentials = credentials
        self._handler = handler
        self._refused = refused
        self._max_frame = max_frame
        self._unproven: dict[trio.CancelScope, None] = {}  # the oldest first
        self._links = 0
        self._due = -math.inf  # when the next connection is accepted

    async def accept(self, listener: trio.SocketListener, peer: str) -> None:
        """Accept connections until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep_until(self._due)
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                        raise
                    self._refused("descriptors")
                    self._due = max(self._due, trio.current_time() + DESCRIPTORS_S)
                    continue
                if len(self._unproven) == UNAUTHENTICATED:
                    oldest = next(iter(self._unproven))
                    del self._unproven[oldest]
                    oldest.cancel()
                scope = trio.CancelScope()
                self._unproven[scope] = None
                nursery.start_soon(self._admit, stream, peer, scope)

    async def _admit(self, stream: trio.SocketStream, peer: str, scope: trio.CancelScope) -> None:
        try:
            async with await self._welcome(stream, peer, scope) as link:
                if self._links >= MAX_LINKS:
                    raise LinkError(
                        "crowded",
                        f"{peer} is one more than the {MAX_LINKS} links that a server keeps",
                    )
                self._links += 1
                try:
                    await self._handler(link)
                finally:
                    self._links -= 1
        except* EndOfStream:
            pass
        except* LinkError as errors:
            for reason in _reasons(errors):
                self._refused(reason)
            self._due = min(
                max(self._due, trio.current_time()) + REFUSAL_S,
                trio.current_time() + UNAUTHENTICATED * REFUSAL_S,
            )

    async def _welcome(self, stream: trio.SocketStream, peer: str, scope: trio.CancelScope) -> Link:
        try:
            with scope, proving(peer, AUTHENTICATION_S):
                return await _link(
                    SocketPipe(stream),
                    self._credentials,
                    None,
                    partial(prove_to_client, key=self._key),
                    peer=peer,
                    max_frame=self._max_frame,
                )
        finally:
            self._unproven.pop(scope, None)
        raise LinkError(
            "crowded", f"{peer} was proving the run's key when {UNAUTHENTICATED} others came"
        )


def _credentials(
    address: Address, tls: Tls | None, end: Literal["client", "server"]
) -> Credentials | None:
    """The certificate that this end shows in TLS; None where the link has none. Raises
    ValueError."""
    if isinstance(address, UnixAddress) or (tls is None and address.loopback):
        return None
    if tls is None:
        raise ValueError(
            f"{address} is not this machine alone, and links between machines need TLS: give "
            "certificate, key and authority"
        )
    return tls.read(end)


async def _link(
    socket: SocketPipe,
    credentials: Credentials | None,
    host: str | None,
    prove: Callable[..., Awaitable[None]],
    *,
    peer: str,
    max_frame: int,
) -> Link:
    """A link over `socket`, which it takes, once both ends have proved themselves; to be called
    inside `proving`. `host` as for `Credentials.secure`."""
    pipe: SocketPipe | TlsPipe = socket
    channel = b""
    try:
        if credentials is not None:
            pipe = secured = credentials.secure(socket, host)
            channel = await secured.shake()
        await prove(pipe, peer=peer, channel=channel)
    except BaseException:
        await pipe.aclose()
        raise
    return Link(pipe, peer=peer, max_frame=max_frame)


def _reasons(group: BaseExceptionGroup[LinkError]) -> Iterator[Refusal]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _reasons(error)
        else:
            yield error.reason
