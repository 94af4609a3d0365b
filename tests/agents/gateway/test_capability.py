"""Keys of a session: one for calls and one for rewards, and none that fits elsewhere."""

from __future__ import annotations

import hashlib
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.agents.gateway.capability import capability, has_right

RIGHTS = "call", "reward"


def by_hand(key: bytes, text: bytes) -> str:
    """HMAC-SHA256 as RFC 2104 writes it."""
    key = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + text).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).hexdigest()


@given(st.binary(min_size=1, max_size=80), st.text(max_size=40).filter(lambda s: s.isprintable()))
def test_it_is_the_hmac_of_right_and_session(key: bytes, session: str) -> None:
    for right in RIGHTS:
        text = b"asyncrl capability\0" + right.encode() + b"\0" + session.encode()
        assert capability(key, session, right) == by_hand(key, text)


def test_a_key_fits_one_session_of_one_run_for_one_right() -> None:
    keys = [
        (capability(run, session, right), run, session, right)
        for run, session, right in product(
            (b"1" * 32, b"2" * 32), ("a", "b", "a\0reward", "call", ""), RIGHTS
        )
    ]
    for (key, *of), (other, *of_other) in combinations(keys, 2):
        assert key != other
        assert not has_right(key, *of_other) and not has_right(other, *of)
    assert all(has_right(*each) for each in keys)


@given(st.text())
def test_what_a_stranger_sends_has_no_right_and_is_no_error(given: str) -> None:
    assert not any(has_right(given, b"k" * 32, "session", right) for right in RIGHTS)


def test_what_is_no_unicode_has_no_right() -> None:
    assert not has_right("\udcff", b"k" * 32, "session", "call")
    assert not has_right(capability(b"k" * 32, "s", "call")[:-1], b"k" * 32, "s", "call")
