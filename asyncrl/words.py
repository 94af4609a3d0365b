"""Numbers in words, and from text. Invariant: the same number has the same words wherever a person
reads it, and one that does not exist is `–`. Pure.
"""

from __future__ import annotations

import math
import re

NONE = "–"


def number(value: float | None, digits: int = 2) -> str:
    """A number, rounded.

    >>> number(1234.567), number(0.25, 3), number(None), number(math.nan)
    ('1,234.57', '0.250', '–', '–')
    """
    return NONE if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def count(value: float | None) -> str:
    """A whole number, or what is counted a second.

    >>> count(12345.6)
    '12,346'
    """
    return number(value, 0)


def whole(text: str) -> int | None:
    """The number that a text from outside is, in the digits 0 to 9, at most eighteen; or None.
    (Python's own takes digits of any script, and fails at thousands of them.)

    >>> whole("012"), whole("١٢"), whole("²"), whole(""), whole("1" * 5000)
    (12, None, None, None, None)
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def sentence(error: Exception) -> str:
    """The text of an error as a sentence, with a full stop unless it has an end.

    >>> sentence(ValueError("it has no rows")), sentence(ValueError("did you mean answer?"))
    ('it has no rows.', 'did you mean answer?')
    """
    text = str(error)
    return text if text.endswith((".", "?")) else f"{text}."


def beyond_reading(error: Exception) -> bool:
    """True if a parser failed at a number that is written right, and has more digits or a larger
    exponent than it reads.

    >>> import json, tomllib
    >>> for read in (json.loads, tomllib.loads):
    ...     try:
    ...         read("1" * 5000 if read is json.loads else "a = " + "1" * 5000)
    ...     except ValueError as error:
    ...         beyond_reading(error)
    True
    True
    """
    return (
        re.search(r"\bexceeds the limit\b.*\bdigits|\bout of range\b", str(error), re.I) is not None
    )


def share(value: float | None) -> str:
    """A part of a whole, 0 to 1.

    >>> share(0.031), share(1)
    ('3%', '100%')
    """
    return NONE if value is None or not math.isfinite(value) else f"{value:.0%}"


def duration(seconds: float | None) -> str:
    """Seconds, in the unit a person would say.

    >>> [duration(seconds) for seconds in (0.0, 0.0123, 0.25, 4.26, 90.0, 300.0, 9000.0)]
    ['0 s', '12.3 ms', '250 ms', '4.3 s', '90 s', '5 min', '2.5 h']
    """
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 0.0005:
        return "0 s"
    if seconds < 0.9995:  # from here on it rounds to a second
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{round(seconds, 1 if seconds < 10 else 0):g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def clock(seconds: float) -> str:
    """Seconds that go on, as minutes and seconds, and hours where there are any.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(int(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
    )


def size(count: float) -> str:
    """Bytes, in the unit a person would say.

    >>> size(999), size(3 * 1024**2)
    ('999 B', '3.0 MiB')
    """
    if count < 1024:
        return f"{count:.0f} B"
    unit = min(3, math.floor(math.log2(count) / 10))
    return f"{count / 1024**unit:,.1f} {('B', 'KiB', 'MiB', 'GiB')[unit]}"
