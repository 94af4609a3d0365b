"""The one way to show text that somebody else wrote: a server, a model, a file, a plug-in, another
process. Invariant: what comes out changes nothing on a terminal but the place where it stands.

A terminal obeys characters: `\\x1b[2J` clears it, others rename its window, turn the direction of
what follows, or begin a line that looks like ours. So what is not printable is written as an
escape. Escaping twice changes nothing, so whoever shows a text need not know who made it.
"""

from __future__ import annotations

import json

import msgspec

SENTENCE = 2000
"""Characters that a sentence has at most."""
CUT = "…"
"""End of a text that was shortened."""


def escaped(text: str, limit: int = SENTENCE) -> str:
    """`text` as one printable line of at most `limit` characters (at least 1)."""
    # an escape is never shorter than what it stands for, so more is not looked at
    shown = "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode()
        for one in text[: limit + 1]
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + CUT


def escaped_lines(text: str, limit: int = SENTENCE) -> str:
    """`text` with each line escaped: for what has lines of its own, as the end of a log."""
    return "\n".join(escaped(line, limit) for line in text.split("\n"))


def escaped_json(value: object, indent: int | None = None) -> str:
    """JSON of what msgspec can encode, with strings whole: in ASCII that is printable, but for the
    ends of lines where there is an `indent`. What is not a finite number is null.

    >>> escaped_json(["\\x1b[2J", "\\x7f", "é"])
    '["\\\\u001b[2J", "\\\\u007f", "\\\\u00e9"]'
    """
    plain = msgspec.json.decode(msgspec.json.encode(value))
    return json.dumps(plain, indent=indent).replace("\x7f", "\\u007f")
