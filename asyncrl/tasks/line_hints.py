"""Words on what to do about a line of a file of prompts that cannot be used: ordinary files of
other tools, by how they begin and what they name. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from asyncrl.escape import escaped

_BEGIN: tuple[tuple[bytes, str], ...] = (
    (b"PAR1", "this is a Parquet file: write its rows as lines of JSON"),
    (b"\x1f\x8b", "this is a file of gzip: unpack it"),
    (b"PK\x03\x04", "this is a zip archive: unpack it"),
    (b"\x28\xb5\x2f\xfd", "this is a file of zstd: unpack it"),
    (b"\xef\xbb\xbf", "the file begins with a byte order mark: save it as UTF-8 without one"),
    (b"\xff\xfe", "the file is UTF-16: save it as UTF-8"),
    (b"\xfe\xff", "the file is UTF-16: save it as UTF-8"),
)
"""First bytes of files that are no JSON lines."""
_NAMES = 6
"""Names of a line that are shown, at most."""


def hint(text: bytes, number: int) -> str:
    """Words on what to do about the line `number`, which cannot be used; empty if there are none.

    >>> hint(b'{"question": "1 + 1?", "answer": "#### 2"}', 1)
    'each line is an object with prompt and answer, and this one has question, answer: rename them'
    >>> hint(b'{"prompt": [{"role": "user", "content": "1 + 1?"}], "answer": "2"}', 3)
    'prompt is the text of the question and no list of messages: write that text, and leave the \
chat template to task.chat'
    """
    if number == 1:
        for begin, words in _BEGIN:
            if text.startswith(begin):
                return words
    try:
        entry = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if (number == 1 and text.strip() == b"[") or text.lstrip().startswith(b"[{"):
            return "the file is one array: write each of its objects on a line"
        if b"NaN" in text or b"Infinity" in text:
            return "NaN and Infinity are no JSON: write null or leave them out"
        return ""
    if isinstance(entry, list):
        return "the file is one array: write each of its objects on a line"
    if not isinstance(entry, dict):
        return "each line is an object with prompt and answer"
    if isinstance(entry.get("prompt"), list):
        return (
            "prompt is the text of the question and no list of messages: write that text, and "
            "leave the chat template to task.chat"
        )
    if {"prompt", "answer"} - entry.keys():
        return (
            "each line is an object with prompt and answer, and this one has "
            f"{_listed(entry)}: rename them"
        )
    return ""


def _listed(names: Iterable[str]) -> str:
    """Names, as far as they are shown."""
    shown = [escaped(name, 40) for name in names]
    more = [f"{len(shown) - _NAMES} more"] if len(shown) > _NAMES else []
    return ", ".join(shown[:_NAMES] + more) or "nothing"
