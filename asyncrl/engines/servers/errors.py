"""Errors of servers, each one sentence."""

from __future__ import annotations

from asyncrl.escape import escaped, escaped_lines


class ServerError(Exception):
    """A server failed: one sentence with its address, which may quote the server; and the end of
    its `log`, if that adds details."""

    def __init__(self, text: str, *, log: str = "") -> None:
        super().__init__(escaped(text) + (f"\n{escaped_lines(log)}" if log else ""))


class ServerGone(ServerError):
    """The connection was refused or broke, or the server was silent for too long. Its requests are
    lost."""


OF_REQUESTS = frozenset({400, 413, 422})
"""HTTP statuses of a refusal that are about the request, and not about the server."""


UNAVAILABLE = 503


class RequestRefused(ServerError):
    """The server refused a call, or failed at it; `status` is the HTTP status of its answer."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status

    @property
    def lasting(self) -> bool:
        """True if the server would refuse the same request each time."""
        return self.status in OF_REQUESTS

    @property
    def later(self) -> bool:
        """True if the server would take the same request at another time: it is paused, or busy."""
        return self.status == UNAVAILABLE


class Misread(ServerError):
    """The server sent something unreadable or inconsistent."""
