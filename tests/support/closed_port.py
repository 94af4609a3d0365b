"""A port at which certainly nobody listens: this process holds it, and does not listen."""

from __future__ import annotations

import socket
from functools import cache


@cache
def held_socket() -> socket.socket:
    """A bound socket that never listens, so that whoever connects is refused at once."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held


def closed_port() -> int:
    """The number of that port; no other process can listen there as long as this one lives."""
    port: int = held_socket().getsockname()[1]
    return port
