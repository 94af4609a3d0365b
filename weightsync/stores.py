"""Stores in which the processes of a group meet. Invariant: on one machine only the run's user can
write to one: it is a file in the run's directory.

torch's TCPStore accepts any client, from every user who reaches its port, and all users share
loopback. So it is only for groups of several machines, and for SGLang servers, which support no
other.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]

from asyncrl.messages.address import TcpAddress, parse_address
from asyncrl.weightsync.errors import TransferError

FILE = "file:"
"""Beginning of the address of a store that is a file."""
LOOPBACK = "127.0.0.1"
SIOCGIFADDR = 0x8915
"""The kernel's call for an interface's address (netdevice(7))."""


@contextmanager
def served_store(host: str, path: Path) -> Iterator[str]:
    """The address of a store for the length of the block: the file `path` where `host` is this
    machine's loopback, or else a port of `host`. Raises TransferError."""
    if not TcpAddress(host, 0).loopback:
        store = serve_tcp_store(host)
        yield str(TcpAddress(host, int(store.port)))
        return
    try:
        path.unlink(missing_ok=True)  # of an actor that was killed
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise TransferError(
            f"the weight store {path} cannot be written ({error.strerror})"
        ) from None
    try:
        yield f"{FILE}{path}"
    finally:
        path.unlink(missing_ok=True)


def open_store(address: str, timeout: timedelta) -> Store:
    """The store at an address that `served_store` gave. Raises RuntimeError where it is not there
    in time."""
    if not address.startswith(FILE):
        where = parse_address(address)
        assert isinstance(where, TcpAddress)
        return TCPStore(where.host, where.port, None, False, timeout)
    path = Path(address.removeprefix(FILE))
    if not path.exists():
        raise RuntimeError("there is no such file")  # FileStore would make one, and wait
    store = FileStore(str(path))
    store.set_timeout(timeout)
    return store


def serve_tcp_store(host: str) -> TCPStore:
    """A store on `host` alone, at a port the system chooses, for as long as it is referred to.
    Raises TransferError."""
    # The socket is ours, because the store's own would listen on every interface.
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise TransferError(
            f"the weight store cannot listen on {host} ({error}): set publication.host to an "
            "address of this machine"
        ) from None
    port = listening.getsockname()[1]
    return TCPStore(
        host,
        port,
        None,
        True,
        timedelta(seconds=60),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def interface_of(address: str) -> str | None:
    """The network interface of this machine that has this IPv4 address; None where none has."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
        if socket.inet_ntoa(answer[20:24]) == address:
            return name
    return None


def own_address(address: str) -> str:
    """The address by which this machine reaches the store at `address`: the one that others on that
    network can connect to. Nothing is sent."""
    if address.startswith(FILE):
        return LOOPBACK
    where = parse_address(address)
    assert isinstance(where, TcpAddress)
    family, kind, _, _, there = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_DGRAM)[
        0
    ]
    with socket.socket(family, kind) as probe:
        probe.connect(there)
        return str(probe.getsockname()[0])
