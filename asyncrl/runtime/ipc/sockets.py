"""Sockets of links' addresses. Invariant: a socket file belongs to one living server, and to this
user alone."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import trio

from asyncrl.messages.address import Address, TcpAddress

_BACKLOG = 1024


async def dial(address: Address) -> trio.SocketStream:
    """A connection to `address`. Raises OSError."""
    if isinstance(address, TcpAddress):
        return await trio.open_tcp_stream(address.host, address.port)
    await trio.lowlevel.checkpoint_if_cancelled()
    sock = _stream_socket(socket.AF_UNIX)
    try:
        with _socket_name(address.path) as name:
            # at once or never: a Unix socket has no connection in progress
            sock.connect(name)
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(trio.socket.from_stdlib_socket(sock))


@contextlib.asynccontextmanager
async def listening(address: Address) -> AsyncIterator[tuple[trio.SocketListener, Address]]:
    """A listener, and the address it got. The socket file is mode 0600, replaces the one of a
    server that is gone, and is removed at the end. Raises OSError if the address is taken."""
    if isinstance(address, TcpAddress):
        addresses = await trio.socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, sockaddr = addresses[0]
        with _stream_socket(family) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(sockaddr)
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"cannot listen on {address}: {error.strerror}; choose another port",
                ) from error
            yield _listener(sock), TcpAddress(address.host, sock.getsockname()[1])
        return
    await trio.lowlevel.checkpoint_if_cancelled()
    with _stream_socket(socket.AF_UNIX) as sock:
        with _socket_name(address.path) as name:
            _clear_stale(address.path, name)
            sock.bind(name)
        address.path.chmod(0o600)  # no client can connect before `listen`
        try:
            yield _listener(sock), address
        finally:
            address.path.unlink(missing_ok=True)


def _stream_socket(family: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    return sock


def _listener(sock: socket.socket) -> trio.SocketListener:
    sock.listen(_BACKLOG)
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def _clear_stale(path: Path, name: str) -> None:
    """Remove the socket file of a server that is gone. Raises OSError if one lives, or if the
    file is not a socket."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(
                f"{path} exists and is not a socket; remove it, or choose another path"
            )
    except FileNotFoundError:
        return
    with _stream_socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(name)
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # it lives, and is busy
    raise OSError(f"another process listens on {path}; end it, or choose another run directory")


@contextlib.contextmanager
def _socket_name(path: Path) -> Iterator[str]:
    """A name of `path` that fits the 107 bytes the kernel allows: a longer one goes through a
    descriptor of its directory."""
    if len(os.fsencode(path)) <= 107:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        name = f"/proc/self/fd/{directory}/{path.name}"
        if len(os.fsencode(name)) > 107:
            raise OSError(
                f"the name {path.name!r} is too long for a socket; keep it under 80 bytes"
            )
        yield name
    finally:
        os.close(directory)
