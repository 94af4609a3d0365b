"""Fetches an image from a host that settings list. Invariant: no other host is asked, also after a
redirect, and no address of a private network unless settings list that address itself.

The address is looked up once, checked, and then connected to, so a name cannot lead elsewhere
between the two. No proxy is used, and nothing of this machine is sent: no cookie, no key.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urljoin, urlsplit

from asyncrl.escape import escaped
from asyncrl.tasks.images.image_source import IMAGE_BYTES, is_listed, origin_of

FETCH_S = 20.0
"""Seconds for an image, at most."""
REDIRECTS = 4
"""Redirects that are followed, at most."""
_MOVED = (301, 302, 303, 307, 308)
_PIECE = 1 << 16
_STALLED_S = 10.0  # of a connection, and of each read


def fetched(url: str, hosts: Sequence[str]) -> bytes:
    """The bytes behind a URL. Raises LookupError, with the reason as the end of a sentence."""
    end, asked = time.monotonic() + FETCH_S, url
    try:
        for _ in range(1 + REDIRECTS):
            found = _asked(asked, hosts, end)
            if isinstance(found, bytes):
                return found
            asked = urljoin(asked, found)
        raise ValueError(f"it was redirected more than {REDIRECTS} times")
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = error.strerror if isinstance(error, OSError) else ""
        raise LookupError(
            f"its image {escaped(url, 200)} cannot be fetched: "
            f"{escaped(why or str(error) or type(error).__name__, 200)}"
        ) from error


def _asked(url: str, hosts: Sequence[str], end: float) -> bytes | str:
    """The bytes behind a URL, or the place to which it was moved. Raises OSError, HTTPException,
    and ValueError."""
    if not is_listed(url, hosts):
        raise ValueError(f"it leads to {escaped(url, 120)}, whose host is not in task.image_hosts")
    scheme, host, port = origin_of(url)
    connection = _Connection(host, port, tls=scheme == "https")
    watch = threading.Timer(max(0.0, end - time.monotonic()), connection.cut)
    watch.start()
    try:
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Host": parts.netloc, "Accept": "image/*", "User-Agent": "asyncrl"}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status in _MOVED and (moved := answer.getheader("Location")):
            return moved
        if answer.status != http.client.OK:
            raise ValueError(f"the host answers {answer.status}")
        data = bytearray()
        while piece := answer.read1(_PIECE):
            data += piece
            if len(data) > IMAGE_BYTES:
                raise ValueError(f"it has more than {IMAGE_BYTES:,} bytes")
        if answer.length or time.monotonic() > end:
            raise ValueError("the connection ended within it")
        return bytes(data)
    except (OSError, http.client.HTTPException) as error:
        if time.monotonic() > end:
            raise ValueError(f"it took more than {FETCH_S:g} s") from error
        raise
    finally:
        watch.cancel()
        connection.close()


class _Connection(http.client.HTTPConnection):
    """A connection to an address of a host, which was checked before."""

    def __init__(self, host: str, port: int, *, tls: bool) -> None:
        super().__init__(host, port, timeout=_STALLED_S)
        self._tls = tls

    def connect(self) -> None:
        """Connect. Raises OSError, and ValueError for an address of a private network."""
        self.sock = socket.create_connection(
            (_address(self.host, self.port), self.port), _STALLED_S
        )
        if self._tls:
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(self.sock, server_hostname=self.host)

    def cut(self) -> None:
        """End what is being read, from another thread."""
        if self.sock is not None:
            with suppress(OSError):  # it has ended
                self.sock.shutdown(socket.SHUT_RDWR)


def _address(host: str, port: int) -> str:
    """An address of a listed host. Raises OSError, and ValueError for a name that leads into a
    private network."""
    found = [entry[4][0] for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if host != "localhost" and not _is_address(host):
        for address in found:
            if not ipaddress.ip_address(str(address).partition("%")[0]).is_global:
                raise ValueError(
                    f"{host} is {address}, an address of a private network: list that address"
                )
    return str(found[0])


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
