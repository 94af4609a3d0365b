"""The versions of servers: the table of what was tried, and the bounds of what is taken. Invariant:
a server of a version outside its bounds is refused, in a sentence, before it is given anything.

Both servers change the calls that asyncrl makes from one minor version to the next, so an upper
bound is as needed as a lower one. `make engines-next` reads the newest package of the index and
says which of these calls it lacks; raise a bound when a version was tried.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Versions(NamedTuple):
    """Versions of one kind of server: the `oldest` that is taken, the one that is `locked` and
    `tried` in each test, the `newest` whose sources were read, and the first that is `refused`."""

    oldest: str
    tried: str
    newest: str
    refused: str


VERSIONS = {
    # 0.5.22 has no update session, and does not report the version of each token
    "SGLang": Versions("0.5.23", "0.5.23", "0.5.23", "0.6"),
    # 0.31 has no weight-transfer engine of this form; 0.33 refuses requests in a pause
    "vLLM": Versions("0.32.0", "0.32.0", "0.33.0", "0.34"),
}
"""By the name of the kind."""


def misfit(kind: str, version: str) -> str | None:
    """The reason why a server of this version is not taken; None where it is.

    >>> misfit("vLLM", "0.31.2")
    '0.32.0 is the oldest that is supported'
    >>> misfit("vLLM", "0.33.1+cu13")
    """
    versions, found = VERSIONS[kind], numbers(version)
    if found < numbers(versions.oldest):
        return f"{versions.oldest} is the oldest that is supported"
    if found >= numbers(versions.refused):
        return (
            f"it was tried with {versions.tried}, and {versions.refused} and later are not "
            f"supported: install {kind} {versions.newest}"
        )
    return None


def numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a version; none where it has none."""
    return tuple(int(number) for number in re.findall(r"[0-9]{1,9}", version)[:3])
