"""Reasons of failures, compared and judged by their text. Pure.

Two failures have the same reason if their texts differ alone in numbers, addresses and names of
temporary files. What a reason speaks of decides how long it is worth trying again:

    `outside`   a network, a server, memory or time: it may pass by itself
    `program`   code or settings that cannot work, whatever the data: trying again changes nothing
    `data`      any other: an answer, or a line, may be at fault, and another one may do
"""

from __future__ import annotations

import re
from typing import Literal

Cause = Literal["outside", "program", "data"]

_NUMBER = re.compile(
    r"https?://\S+|/tmp/\S+|\b(?=[a-f-]*[0-9])[0-9a-f][0-9a-f-]{7,}\b|0x[0-9a-fA-F]+"
    r"|(?<=\bimage )\S+|\basyncrl-[0-9a-f]{12}-\S+|[0-9]+(?:\.[0-9]+)?"
)
"""Numbers, and names that a program draws: addresses, temporary files, long hexadecimal words; and
names of images and sandboxes, of which each episode may have its own."""
_QUOTED = re.compile(r"(?<!\w)(?:'[^']*'|\"[^\"]*\"|`[^`]*`)")
_EXCEPTION = re.compile(r"\b(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Mismatch|Exit)): \S")
_OUTSIDE = re.compile(
    r"Connect|Timeout|TimedOut|Network|Broken|Lost\b|Gone\b|Crash|Memory|OSError|IOError|Socket"
    r"|Blocking|Interrupted|Unavailable|RateLimit|Overload|ServerError|HTTP|Closed|WaitExpired"
    r"|Workers|Dist[A-Z]\w*Error|gaierror|SSL|Accelerator|Transfer|Journal|Disk"
    r"|\btimeout\b|timed out|temporar|try again|unreachable|out of memory|no space left"
    r"|too many open files|new thread|crashed|connection|name or service|rate limit|CUDA|NCCL"
    r"|address already in use|\b429\b|\b50[0234]\b|^judge (unavailable|unreachable)"
)
_PROGRAM = re.compile(
    r"^(TypeError|NameError|UnboundLocalError|ImportError|ModuleNotFoundError|NotImplementedError"
    r"|FileNotFoundError|PermissionError|ConfigError|ModelError|PlanMismatch|TaskError)$"
)
_NO_NUMBER = re.compile(r"^not a number: (?!NoneType)")


def same(text: str) -> str:
    """The text without what differs by chance: equal for failures of the same reason.

    >>> same("IndexError: row 17 of 0x7f3a") == same("IndexError: row 4 of 0x1b")
    True
    """
    return _NUMBER.sub("N", text)


def form_of(text: str) -> str:
    """The same without what it quotes, which is of the data where each attempt has its own.

    >>> form_of("ValueError: no number: 'a'") == form_of('ValueError: no number: "b"')
    True
    """
    return _QUOTED.sub("Q", same(text))


def exception_in(text: str) -> str:
    """The name of the first exception in a text, without its module; empty if there is none.

    >>> exception_in("raised: asyncrl.weightsync.buckets.PlanMismatch: tensor 24 is lm_head")
    'PlanMismatch'
    """
    found = _EXCEPTION.search(text)
    return found[1] if found else ""


def cause_of(text: str) -> Cause:
    """The cause that a reason speaks of. `None` in it may be an answer in which nothing was found.

    >>> cause_of("raised: TypeError: judge() takes 3 arguments"), cause_of("timeout")
    ('program', 'outside')
    >>> cause_of("raised: IndexError: list index out of range")
    'data'
    """
    if _OUTSIDE.search(text):
        return "outside"
    if _NO_NUMBER.match(text):
        return "program"
    sure = _PROGRAM.match(exception_in(text)) is not None
    return "program" if sure and "NoneType" not in text else "data"
