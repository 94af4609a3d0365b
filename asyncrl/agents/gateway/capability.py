"""Keys of a session, one for each right, made from the run's key. Pure.

An agent samples with its session's key for calls. A program that a model wrote may have that key,
too, but cannot set a reward with it: rewards need the other key. Neither key reveals the other,
another session's, or the run's.
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


def has_right(key: str, run_key: bytes, session: str, right: Right) -> bool:
    """True if `key`, which a client sent, is that key. The comparison takes constant time."""
    expected = capability(run_key, session, right).encode()
    return hmac.compare_digest(key.encode(errors="surrogatepass"), expected)
