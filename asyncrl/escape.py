"""The one way to show foreign text: of a server, a model, a file, a plug-in, another process.
Invariant: the output changes nothing on a terminal but its own position.

A terminal obeys characters: `\\x1b[2J` clears it, others rename its window, reverse the direction
of text, or begin a line that looks like ours. So characters that are not printable are written as
escapes. Escaping twice changes nothing, so code that shows a text need not know its origin.
"""

from __future__ import annotations

import json

import msgspec

SENTENCE = 2000
"""Characters of a sentence, at most."""
CUT = "…"
"""End of a text that was shortened."""


def escaped(text: str, limit: int = SENTENCE) -> str:
    """`text` as one printable line of at most `limit` characters (at least 1)."""
    # an escape is never shorter than its character, so later ones would be cut
    shown = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text[: limit + 1]
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + CUT


def quoted(text: str, limit: int = SENTENCE) -> str:
    """`text` in quotes, of which at most `limit` characters are shown, each escaped once.

    >>> print(quoted("a\\x1b[2J"), quoted("long", 3))
    'a\\x1b[2J' 'lo…'
    """
    return repr(text if len(text) <= limit else text[: limit - 1] + CUT)


def escaped_lines(text: str, limit: int = SENTENCE) -> str:
    """`text` with each line escaped: for text of several lines, such as the end of a log."""
    return "\n".join(escaped(line, limit) for line in text.split("\n"))


def escaped_json(value: object, indent: int | None = None) -> str:
    """JSON of a value that msgspec can encode, with whole strings: printable ASCII, but for the
    ends of lines if there is an `indent`. Numbers that are not finite become null.

    >>> escaped_json(["\\x1b[2J", "\\x7f", "é"])
    '["\\\\u001b[2J", "\\\\u007f", "\\\\u00e9"]'
    """
    plain = msgspec.json.decode(msgspec.json.encode(value))
    return json.dumps(plain, indent=indent).replace("\x7f", "\\u007f")
