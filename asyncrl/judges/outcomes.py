"""Outcomes of a request to a judge, and whether another may do better. Pure.

Each has a `reason`, which begins with its kind:

    judge rate limited   it has had too many requests, or tokens (429)
    judge unavailable    it failed, or is overloaded (408, 425, 5xx)
    judge unreachable    no connection, or it broke
    judge timeout        no answer in time
    judge unreadable     an answer without a score
    judge refused        this request, for what it is (400, 413, 422, …): not sent again

A refused key or address (401, 402, 403, 404, 405, a redirect) is refused for each answer alike, so
it ends the run (JudgeRefused) in place of verdicts. What a server says under 401 and 403 is not
repeated, since it may quote the key.
"""

from __future__ import annotations

import math
from email.utils import parsedate_to_datetime

import msgspec

from asyncrl.config.errors import ConfigError
from asyncrl.config.judging import LONGEST_PAUSE_S

FIRST_PAUSE_S = 1.0
"""Seconds before the second request, at most; each later pause may be twice as long."""
SAID = 200
"""Characters of a server's text in a reason."""
MOST_S = 3600.0
"""Seconds that a server may ask to wait; more is taken for so many."""
READINGS = 2
"""Requests whose replies may be unreadable: a model that is asked again may say the same."""

ALWAYS = frozenset({401, 402})
"""Statuses that refuse each request: a key, or what it has paid."""
AT_FIRST = frozenset({301, 302, 303, 307, 308, 403, 404, 405})
"""Statuses that refuse each request, unless one was answered before: then they may be about an
answer's text, or pass."""
QUIET = frozenset({401, 403})
"""Statuses of answers that may quote the key."""
PASSING = frozenset({408, 409, 425})
"""Statuses below 500 that may pass."""


class JudgeRefused(ConfigError):
    """The judge refuses each request: its key, model or address."""


class Failure(msgspec.Struct, frozen=True):
    """A request without a score. `again` says that another may have one. The server asks that none
    is sent for `wait_s`. A `read` one came with a reply that cannot be read."""

    reason: str
    again: bool = True
    wait_s: float = 0.0
    read: bool = False


def unreadable(why: str) -> Failure:
    """A reply without a score."""
    return Failure(f"judge unreadable: {why}", read=True)


def refused_for_all(status: int, *, answered: bool) -> bool:
    """True if a status means that each request would be refused; `answered` says that one was
    not.

    >>> refused_for_all(401, answered=True), refused_for_all(404, answered=True)
    (True, False)
    """
    return status in ALWAYS or (status in AT_FIRST and not answered)


def failure_of(status: int, said: str, retry_after: str, now: float) -> Failure:
    """The failure of a response with another status than 200. `now` are seconds since 1970.

    >>> failure_of(429, "", "7", 0.0)
    Failure(reason='judge rate limited: 429', again=True, wait_s=7.0, read=False)
    """
    wait_s = asked_wait_s(retry_after, now)
    what = f": {said[:SAID]}" if said and status not in QUIET else ""
    if status == 429:
        return Failure("judge rate limited: 429", wait_s=wait_s)
    if status >= 500 or status in PASSING:
        return Failure(f"judge unavailable: {status}", wait_s=wait_s)
    return Failure(f"judge refused: {status}{what}", again=False)


def asked_wait_s(retry_after: str, now: float) -> float:
    """Seconds that a Retry-After header asks to wait: a number, or a date. 0 if it says neither.

    >>> asked_wait_s("Thu, 01 Jan 1970 00:01:00 GMT", 20.0), asked_wait_s("soon", 0.0)
    (40.0, 0.0)
    """
    text = retry_after.strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - now
        except (ValueError, OverflowError):
            return 0.0
    return min(max(0.0, seconds), MOST_S) if math.isfinite(seconds) else 0.0


def pause_s(failures: int, draw: float) -> float:
    """Seconds before the next request for an answer, after so many failed; `draw` in [0, 1) spreads
    those of several answers.

    >>> [pause_s(failures, 1.0) for failures in (1, 2, 3, 9)]
    [1.0, 2.0, 4.0, 60.0]
    """
    longest = min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE_S)
    return longest * (0.5 + 0.5 * draw)
