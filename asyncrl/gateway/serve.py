"""The gateway on a socket. Invariant: it listens on loopback alone, and what it leaves behind when
it closes is finished sessions.

hypercorn speaks HTTP, on trio. It sends without a deadline, so the kernel has one: a client that
does not read for `SILENT_S` is cut off.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from typing import cast

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as hypercorn
from hypercorn.typing import Framework
from starlette.applications import Starlette

from asyncrl.gateway.gateway import Gateway

SILENT_S = 60
KEEP_ALIVE_S = 75
FLUSH_S = 0.25
"""Seconds in which answers that are complete when the gateway is drained must be sent."""
_LOG = logging.getLogger(__name__)


async def serve(
    gateway: Gateway,
    app: Starlette,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    close: trio.Event,
    drain_s: float,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer until `close` is set, then drain (see `Gateway.drain`) and return. Starts with the
    URL, without a path; port 0 is any free one.

    Raises ValueError for a host that is not loopback, and OSError where the port is taken.
    """
    listening = _listen(host, port)
    address, bound = listening.getsockname()[:2]
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]  # hypercorn owns it from here on
    config.errorlog = _LOG
    config.loglevel = "WARNING"
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.include_server_header = False
    config.graceful_timeout = FLUSH_S

    async def closing() -> None:
        await close.wait()
        await gateway.drain(drain_s)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.run)
        task_status.started(f"http://{f'[{address}]' if ':' in address else address}:{bound}")
        await hypercorn(cast(Framework, app), config, shutdown_trigger=closing)
        nursery.cancel_scope.cancel()


def _listen(host: str, port: int) -> socket.socket:
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise ValueError(
            f"the gateway listens on an address, and {host!r} is none; use 127.0.0.1"
        ) from error
    if not address.is_loopback:
        raise ValueError(
            f"the gateway speaks plain HTTP and listens on loopback alone, not on {host}; put a "
            "proxy with TLS in front of it"
        )
    listening = socket.socket(
        socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_STREAM
    )
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000)
        listening.bind((str(address), port))
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening
