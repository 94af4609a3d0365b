"""Limits of a server: the connections, bytes and seconds that its clients may use."""

from __future__ import annotations

import resource

import msgspec

_SHARE, _MOST = 4, 1024
"""One in `_SHARE` of the process's descriptors may be a connection, and at most `_MOST`."""


class HttpLimits(msgspec.Struct, frozen=True):
    """At most `connections` of known clients may be open, and `strangers` of others: one more of
    those evicts the oldest. A client has `head_s` seconds for its first request's head, of at most
    `head_bytes` and `head_lines`; a known one may be idle for `idle_s` between two requests. It
    must send each part of a body, and take each part of an answer, within `part_s`. With
    `makes_room` one more known client than may be takes the place of the one that has been idle
    longest: for a server without a key, to which anybody is known."""

    connections: int
    strangers: int
    head_s: float = 10.0
    head_bytes: int = 16 << 10
    head_lines: int = 128
    idle_s: float = 75.0
    makes_room: bool = False
    part_s: float = 60.0

    @classmethod
    def of_descriptors(cls) -> HttpLimits:
        """Limits that leave the process most of the descriptors that it may have open.

        Example: of 1,024 descriptors 256 may be known clients, and 64 strangers.
        """
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST * _SHARE if soft == resource.RLIM_INFINITY else soft
        connections = min(_MOST, max(4, most // _SHARE))
        return cls(connections, min(64, max(2, connections // 4)))
