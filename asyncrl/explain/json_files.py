"""Files of JSON in a run's directory. Invariant: each is written whole or not at all, and what is
read has a bound.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from asyncrl.files import read_regular, write_whole

T = TypeVar("T")

_ALIKE = bytes.maketrans(b"123456789E:[ \t\r\n-", b"000000000e,,,,,,,")
_FAR = b"," + b"0" * 19, b"e0", b"e+0"
"""Marks of each number from 2**63 on, once its digits are alike, and what comes before a number:
so many digits before its point, or an exponent above 0. Few other texts have one, and a long curve
is read without a second decoding."""
BYTES = 2**26
"""Bytes of a file that are read, at most: a status of a hundred thousand actors has fewer."""


def write_json(value: msgspec.Struct, path: Path, *, forced: bool) -> None:
    """Write a file; NaN is written as null. One that is not `forced` to the disk outlives every
    process, but not a loss of power. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    write_whole(path, text, forced=forced)


def read_json(path: Path, kind: type[T]) -> T:
    """Read what `write_json` wrote. Raises OSError (also for what is no file, or too large a one),
    msgspec.DecodeError (no JSON) or msgspec.ValidationError (no `kind`)."""
    return decoded(read_regular(path, BYTES), kind)


def decoded(data: bytes, kind: type[T]) -> T:
    """The `kind` in `data`, JSON of numbers that can be reckoned with: finite, and none over 64
    bits. Raises msgspec.DecodeError (no JSON) or msgspec.ValidationError (no `kind`)."""
    try:
        found = msgspec.json.decode(data, type=kind)
        alike = data.translate(_ALIKE)
        far = any(mark in alike for mark in _FAR)
        reckonable = not far or _reckonable(msgspec.json.decode(data))
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    if not reckonable:
        raise msgspec.ValidationError("a number is out of all bounds")
    return found


def _reckonable(value: object) -> bool:
    match value:
        case dict():
            return all(map(_reckonable, value.values()))
        case list():
            return all(map(_reckonable, value))
        case int() | float():
            return -(2**63) < value < 2**63
        case _:
            return True
