"""Errors of links, and the reasons that are counted."""

from __future__ import annotations

from typing import Literal

Refusal = Literal[
    "key",
    "certificate",
    "silent",
    "slow",
    "oversized",
    "malformed",
    "broken",
    "crowded",
    "descriptors",
]
"""The reason for which a connection was closed, as counted: no key or another run's, no certificate
of the run's authority, no answer in time, a frame that makes no progress, a frame over the limits,
a frame that does not parse, an end inside a frame or a failing connection, too many others, no file
descriptor left to accept with."""


class LinkError(Exception):
    """A link failed and is closed. Its message is a sentence; `reason` is counted."""

    def __init__(self, reason: Refusal, sentence: str) -> None:
        super().__init__(sentence)
        self.reason: Refusal = reason


class LinkBroken(LinkError):
    """The link is closed, here or there; the last frames sent may not have arrived."""

    def __init__(self, sentence: str) -> None:
        super().__init__("broken", sentence)


class EndOfStream(Exception):
    """The peer closed the link, between two frames."""
