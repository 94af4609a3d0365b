"""The gateway on a socket. Invariant: it listens only on loopback."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

import trio

from asyncrl.runtime.httpd.asgi import Application, Headers, HttpRefusal
from asyncrl.runtime.httpd.http_limits import HttpLimits
from asyncrl.runtime.httpd.http_server import HttpServer
from asyncrl.runtime.ipc.waits import Waits


def _uncounted(refusal: HttpRefusal) -> None:
    """Count nothing."""


async def serve(
    app: Application,
    known: Callable[[Headers], bool],
    waits: Waits,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    refused: Callable[[HttpRefusal], None] = _uncounted,
    limits: HttpLimits | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer agents by `app` until cancelled. Starts with the URL, without a path; port 0 is any
    free one. `refused` is called for each connection that had to be closed. `known` decides by a
    request's headers whether its key is valid. The default `limits` are those of the process.

    Raises ValueError for a host that is not loopback, and OSError if the port is taken.
    """
    listening = _listen(host, port)
    address, bound = listening.getsockname()[:2]
    server = HttpServer(
        app,
        limits or HttpLimits.of_descriptors(),
        known=known,
        refused=refused,
        waits=waits,
        owner="the agents' gateway",
    )

    task_status.started(f"http://{f'[{address}]' if ':' in address else address}:{bound}")
    await server.run(
        trio.SocketListener(trio.socket.from_stdlib_socket(listening)), trio.sleep_forever
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise ValueError(
            f"the gateway needs an IP address to listen on, and {host!r} is not one; use 127.0.0.1"
        ) from error
    if not address.is_loopback:
        raise ValueError(
            f"the gateway speaks plain HTTP and listens only on loopback, not on {host}; put a "
            "proxy with TLS in front of it"
        )
    listening = socket.socket(
        socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_STREAM
    )
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((str(address), port))
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening
