"""Keys of one session for one thing each, made from the run's key. Pure.

Who samples for a session has its key for calls. A program that a model wrote may have that one, and
so cannot give the session a reward: that takes the other key. Neither tells anything of the other,
of another session's, or of the run's own.
"""

from __future__ import annotations

import hmac
from typing import Literal

Right = Literal["call", "reward"]
"""Rights that a key gives: to sample, and to give rewards."""


def capability(run_key: bytes, session: str, right: Right) -> str:
    """The key of a session for a right: 64 hexadecimal digits, HMAC-SHA256 of right and session
    under the run's key.

    >>> capability(b"k", "s", "call") == capability(b"k", "s", "reward")
    False
    """
    text = b"\0".join((b"asyncrl capability", right.encode(), session.encode()))
    return hmac.digest(run_key, text, "sha256").hex()


def has_right(given: str, run_key: bytes, session: str, right: Right) -> bool:
    """True if `given`, from a stranger, is that key; compared in constant time."""
    expected = capability(run_key, session, right).encode()
    return hmac.compare_digest(given.encode(errors="surrogatepass"), expected)
