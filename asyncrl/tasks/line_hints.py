"""Words on what to do about a line of a file of prompts that cannot be used: ordinary files of
other tools, by how they begin and what they name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from asyncrl.escape import escaped
from asyncrl.words import beyond_reading

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
_MARKS = {"\t": "tab", ",": "comma", ";": "semicolon"}
"""Marks between the columns of a table."""


def hint(text: bytes, number: int) -> str:
    """Words on what to do about the line `number`, which cannot be used; empty if there are none.

    >>> hint(b'{"question": "1 + 1?", "answer": "#### 2"}', 1)
    'each line is an object with prompt and answer, and this one has question, answer: prompt is \
missing; rename what it is called here'
    >>> hint(b'{"prompt": "1 + 1?", "answer": 1e400}', 2)
    'a number in it is too large to be read: write it as text, in quotes'
    >>> hint(b"question,answer", 1)
    'this is a table of comma-separated values: write its rows as lines of JSON'
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if beyond_reading(error):
            return "a number in it is too large to be read: write it as text, in quotes"
        if (number == 1 and text.strip() == b"[") or text.lstrip().startswith(b"[{"):
            return "the file is one array: write each of its objects on a line"
        if b"NaN" in text or b"Infinity" in text:
            return "NaN and Infinity are no JSON: write null or leave them out"
        return _of_table(text) if number == 1 else ""
    if isinstance(entry, list):
        return "the file is one array: write each of its objects on a line"
    if not isinstance(entry, dict):
        return "each line is an object with prompt and answer"
    if isinstance(entry.get("prompt"), list):
        return (
            "prompt is the text of the question and no list of messages: write that text, and "
            "leave the chat template to task.chat"
        )
    if missing := [name for name in ("prompt", "answer") if name not in entry]:
        return (
            "each line is an object with prompt and answer, and this one has "
            f"{_listed(entry)}: {_to_do(entry, missing)}"
        )
    return ""


def _to_do(entry: Mapping[str, object], missing: Sequence[str]) -> str:
    """The end of the sentence about a line without these names."""
    if "messages" in entry:
        return "write the text of the question as prompt, and the right answer as answer"
    are = "is" if len(missing) == 1 else "are"
    return f"{' and '.join(missing)} {are} missing; rename what it is called here"


def _of_table(text: bytes) -> str:
    """Words on a table, by its first line; empty where that is none."""
    first = text.decode(errors="replace").strip()
    words = first.replace('"', "")
    for mark, kind in _MARKS.items():
        names = [name.strip() for name in words.split(mark)]
        if len(names) > 1 and all(
            name.replace("_", " ").replace(" ", "a").isalnum() for name in names
        ):
            return f"this is a table of {kind}-separated values: write its rows as lines of JSON"
    return ""


def _listed(names: Iterable[str]) -> str:
    """Names, as far as they are shown."""
    shown = [escaped(name, 40) for name in names]
    more = [f"{len(shown) - _NAMES} more"] if len(shown) > _NAMES else []
    return ", ".join(shown[:_NAMES] + more) or "nothing"
