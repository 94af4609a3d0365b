"""The pace of requests under limits of requests and tokens a minute. Pure: it gets the time.

Invariant: in any minute at most the limit of requests begins, and tokens of at most the limit and
one request. Requests are spread evenly (a token bucket of one request's depth), so a server that
counts in windows of its own, wherever they begin, never sees more.
"""

from __future__ import annotations

import math

MINUTE_S = 60.0


class Pace:
    """The time at which the next request may begin.

    >>> pace = Pace(requests=60, tokens=6000)
    >>> pace.take(10.0, tokens=50)
    >>> pace.ready_at
    11.0
    >>> pace.take(11.0, tokens=500)
    >>> pace.ready_at
    16.0
    """

    def __init__(self, requests: float, tokens: float) -> None:
        """Both are limits of a minute."""
        self._request_s, self._token_s = MINUTE_S / requests, MINUTE_S / tokens
        self._request_at = self._token_at = self._until = -math.inf

    @property
    def ready_at(self) -> float:
        """The time from which on the next request may begin."""
        return max(self._request_at, self._token_at, self._until)

    def take(self, now: float, tokens: float) -> None:
        """A request of about so many tokens, those of its reply among them, begins."""
        self._request_at = now + self._request_s
        self._token_at = max(now, self._token_at) + tokens * self._token_s

    def correct(self, estimated: float, used: float) -> None:
        """The server says that a request `used` so many tokens."""
        self._token_at += (used - estimated) * self._token_s

    def pause(self, until: float) -> None:
        """No request begins before, because the server says so."""
        self._until = max(self._until, until)
