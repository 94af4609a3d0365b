"""Addresses of links' servers."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from asyncrl.words import whole


class UnixAddress(msgspec.Struct, frozen=True):
    """A socket file on this machine."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


class TcpAddress(msgspec.Struct, frozen=True):
    """A port of a machine; port 0 lets the system choose."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """True if it can only be reached from this machine. Names other than `localhost` are not
        resolved, because a resolver may lie."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return (
            f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"
        )


Address = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """The address written as `unix:/path` or `tcp:host:port`. Raises ValueError."""
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest.startswith("/"):
        return UnixAddress(Path(rest))
    host, _, port = rest.rpartition(":")
    number = whole(port)
    if kind == "tcp" and host and number is not None and number < 2**16:
        return TcpAddress(host.removeprefix("[").removesuffix("]"), number)
    raise ValueError(f"{text!r} is no address: write unix:/path/of/socket, or tcp:host:port")


def tcp_address(text: str) -> TcpAddress:
    """The address of a port, written as `tcp:host:port`. Raises ValueError."""
    address = parse_address(text)
    if not isinstance(address, TcpAddress):
        raise ValueError(f"{text!r} is no address of a machine: write tcp:host:port")
    return address


def url_parts(url: str) -> SplitResult:
    """The parts of a URL; all empty if it is none, as with a bracket that is not closed.

    >>> url_parts("http://a:80/b").hostname, url_parts("http://[a").hostname
    ('a', None)
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # it may be no number
    except ValueError:
        return urlsplit("")
    return parts
