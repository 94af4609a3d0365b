"""All forms, found by the names of their files, and what looks like a call in any of them."""

from __future__ import annotations

import pkgutil
import re
from functools import cache
from importlib import import_module

import asyncrl.agents.gateway.formats as room
from asyncrl.agents.gateway.formats.tool_format import ToolFormat

_BARE = re.compile(r'\s*\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"(?:parameters|arguments)"\s*:')


@cache
def every_format() -> tuple[ToolFormat, ...]:
    """The `FORMAT` of each file, by its name."""
    modules = [
        import_module(f"{room.__name__}.{m.name}") for m in pkgutil.iter_modules(room.__path__)
    ]
    return tuple(module.FORMAT for module in modules if hasattr(module, "FORMAT"))


@cache
def _marks() -> re.Pattern[str]:
    marks = {mark for form in every_format() for mark in form.marks if len(mark) > 6}
    return re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))


def looks_like_a_call(text: str) -> bool:
    """True if a text has a mark that calls alone have, in any form.

    >>> looks_like_a_call('<function=f>'), looks_like_a_call("a < b")
    (True, False)
    """
    return _marks().search(text) is not None or _BARE.match(text) is not None
