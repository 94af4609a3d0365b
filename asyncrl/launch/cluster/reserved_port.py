"""A port of this machine that is reserved for another process of the run, so that its number can be
sent to others before that process listens."""

from __future__ import annotations

import socket

import trio

from asyncrl.messages.address import TcpAddress


async def keep_port(
    host: str, *, task_status: trio.TaskStatus[TcpAddress] = trio.TASK_STATUS_IGNORED
) -> None:
    """Keep a free port of `host` until cancelled. Raises OSError.

    It is bound without a listener, so that connections are refused; and a socket with SO_REUSEADDR
    may be bound there, too, and listen (socket(7): "except when there is an active listening socket
    bound to the address").
    """
    [(family, _, _, _, sockaddr), *_] = await trio.socket.getaddrinfo(
        host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with socket.socket(family, socket.SOCK_STREAM) as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(sockaddr)
        task_status.started(TcpAddress(host, kept.getsockname()[1]))
        await trio.sleep_forever()
