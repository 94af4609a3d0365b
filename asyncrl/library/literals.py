"""Constants of a session as text: plain values alone, so that nothing is pickled."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath
from typing import Any, NamedTuple

LITERAL_CHARACTERS = 2**20
"""Characters of a constant, at most; more of them are data, and belong into a file."""
DEPTH = 32
"""Lists and tables within one another in a constant, at most."""


class Literal(NamedTuple):
    """The text of a constant, and the modules that it names."""

    text: str
    modules: frozenset[str] = frozenset()


def literal(value: Any) -> Literal | None:
    """A constant as text, if it is made of plain values alone; else None.

    >>> literal({"a": [1, 2.5, (None,)]}).text, literal(object())
    ("{'a': [1, 2.5, (None,)]}", None)
    >>> literal([re.compile("[0-9]+", re.ASCII)])
    Literal(text="[re.compile('[0-9]+', 256)]", modules=frozenset({'re'}))
    """
    modules = set[str]()
    text = _literal(value, 0, modules)
    if text is None or len(text) > LITERAL_CHARACTERS:
        return None
    return Literal(text, frozenset(modules))


def _literal(value: Any, depth: int, modules: set[str]) -> str | None:
    kind = type(value)
    if depth > DEPTH:
        return None
    if kind is float and not math.isfinite(value):
        return f"float('{value}')"
    if kind in (type(None), bool, int, float, complex, str, bytes, type(...)):
        return repr(value)
    if kind is re.Pattern:
        modules.add("re")
        return f"re.compile({value.pattern!r}, {int(value.flags)})"
    if kind in (PosixPath, Fraction, Decimal):
        modules.add(kind.__module__.partition(".")[0])
        return f"{kind.__module__.partition('.')[0]}.{value!r}"
    if kind is dict:
        pairs = [
            (_literal(key, depth + 1, modules), _literal(item, depth + 1, modules))
            for key, item in value.items()
        ]
        if any(None in pair for pair in pairs):
            return None
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    if kind not in (list, tuple, set, frozenset):
        return None
    items = [_literal(item, depth + 1, modules) for item in value]
    if any(item is None for item in items):
        return None
    inner = ", ".join(item for item in items if item is not None)
    if kind is list:
        return f"[{inner}]"
    if kind is tuple:
        return f"({inner}{',' * (len(items) == 1)})"
    return f"{kind.__name__}([{inner}])"
